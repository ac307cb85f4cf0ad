"""Which entries were used most, and which those they guided won and lost with.

An entry that guides easy tasks wins with or without merit: these are counts of what happened, not of what it caused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tacit.companions.experience.bank import Bank
from tacit.companions.experience.entries import Entry, Usage

Order = Literal["use", "useful", "harmful"]
ORDERS: dict[Order, Callable[[Usage], tuple[int, ...]]] = {
    "use": lambda u: (u.retrieved, u.wins + u.losses),
    "useful": lambda u: (u.wins - u.losses, u.wins),
    "harmful": lambda u: (u.losses - u.wins, u.losses),
}


def ranked(bank: Bank, order: Order) -> list[tuple[Entry, Usage]]:
    """The living, first first, older before newer where they are equal; by what they did only those that guided somebody, and
    as useful only those that won more often than they lost, as harmful the other way round."""
    measure = ORDERS[order]
    found = [(entry, bank.usage[entry.id]) for entry in bank.entries.values()]
    if order != "use":
        found = [(entry, usage) for entry, usage in found if measure(usage)[0] > 0]
    return sorted(found, key=lambda pair: (*(-value for value in measure(pair[1])), pair[0].id))
