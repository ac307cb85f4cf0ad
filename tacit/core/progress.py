"""Something to read while something long goes on."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

EVERY_S = 5.0
_COUNTED = re.compile(r"(\d+)/(\d+) \[")


def try_say(say: Callable[[str], None], line: str) -> bool:
    """Say it from a thread. False where nobody reads any more (`| head`): that is for the command itself to find out."""
    try:
        say(line)
    except BrokenPipeError:
        return False
    return True


@contextmanager
def report_elapsed(say: Callable[[str], None], line: Callable[[float], str], every_s: float | None = None) -> Iterator[None]:
    """Every `every_s` (EVERY_S) seconds the `line` for the seconds it has taken; none for what is over sooner."""
    began, over, pause_s = time.monotonic(), threading.Event(), EVERY_S if every_s is None else every_s

    def remind() -> None:
        while not over.wait(pause_s) and try_say(say, line(time.monotonic() - began)):
            pass

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def report_while(say: Callable[[str], None], what: str, how_far: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Say `what` now, and every few seconds how far it is (where that is known) and how long it has taken."""
    say(what)
    with report_elapsed(say, lambda spent: "  " + ", ".join(part for part in (how_far(), f"{spent:.0f} s") if part)):
        yield


class Bar(io.StringIO):
    """Takes a tqdm bar in place of the terminal, and says its count in words; when it is full, what is done `then`."""

    def __init__(self, things: str, then: str) -> None:
        super().__init__()
        self._things, self._then, self._counted = things, then, ""

    def write(self, text: str) -> int:
        for done, total in _COUNTED.findall(text):
            self._counted = f"{done} of {total} {self._things}" if done != total else self._then
        return len(text)

    def counted(self) -> str:
        return self._counted


# Amounts and moments as a person says them.


def pluralize(count: int, one: str, many: str = "") -> str:
    """
    >>> pluralize(1, "episode"), pluralize(2, "episode"), pluralize(0, "family", "families"), pluralize(12345, "turn")
    ('1 episode', '2 episodes', '0 families', '12345 turns')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def format_duration(seconds: float) -> str:
    """
    >>> format_duration(4.2), format_duration(59.7), format_duration(75), format_duration(7500)
    ('4.2 s', '1 min 00 s', '1 min 15 s', '2 h 05 min')
    """
    if round(seconds) < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def format_stage(evaluation: Mapping[str, Any]) -> str:
    """When in a run it was: `untrained`, `after sft 200`, `after rl 20`."""
    stage, step = evaluation["stage"], evaluation["step"]
    return stage if stage == "untrained" else f"after {stage} {step}"


# Text that somebody else wrote.


def is_unicode(text: str) -> bool:
    """False for half a surrogate pair: JSON can say it, and no file, tokenizer or bank can take it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
