"""A process that writes into a bank in a fixed order until it is killed, and reports each acknowledged write."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from tacit.companions.experience.bank import Bank, Call, Origin
from tacit.companions.experience.retrieval import NgramEmbedding

EMBED = NgramEmbedding(3, 16)


def opened(path: Path | None) -> Bank:
    return Bank(path, EMBED.name, EMBED.dimensions, 12)


def apply(bank: Bank, number: int) -> None:
    """Apply write `number`. It depends only on the number and the contents of the bank."""
    living = list(bank.entries)
    call = Call(np.arange(number % 50), np.array([number]), np.zeros(1, np.float32), number % 7)
    fresh = (f"entry {number}", EMBED([f"entry {number}"])[0], Origin(step=number), call)
    if number % 9 == 8:
        bank.drop_retired_calls()
    elif number % 4 == 1:
        bank.record("guided", living[-2:], number, "t", number % 8 == 1)
    elif number % 4 == 2 and len(living) > 4:
        bank.replace(living[1:4], [fresh], "merged")
    else:
        bank.replace(living[-1:] if number % 4 == 3 else (), [fresh], "updated")


def contents(bank: Bank) -> list:
    written = {number: bank.call(number) for number in range(1, max(bank.entries, default=0) + 1)}
    calls = {number: (call.completion.tolist(), call.version) for number, call in written.items() if call}
    return [calls, *((e.id, e.text, e.origin, vars(bank.usage[e.id])) for e in bank.entries.values())]


def write_without_end(path: str, first: int, pipe: int) -> None:
    bank, number = opened(Path(path)), first
    os.write(pipe, b"open\n")
    while True:
        apply(bank, number)
        os.write(pipe, f"{number}\n".encode())
        number += 1
