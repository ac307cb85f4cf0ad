"""Progress lines of long operations, and formatting of counts and durations."""

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
    """Print from a thread. False if the pipe is closed (`| head`); the command itself handles that."""
    try:
        say(line)
    except BrokenPipeError:
        return False
    return True


@contextmanager
def report_elapsed(say: Callable[[str], None], line: Callable[[float], str], every_s: float | None = None) -> Iterator[None]:
    """Within this context, print `line(elapsed seconds)` every `every_s` seconds (default EVERY_S), unless it is empty."""
    began, ended, pause_s = time.monotonic(), threading.Event(), EVERY_S if every_s is None else every_s

    def remind() -> None:
        while not ended.wait(pause_s):
            text = line(time.monotonic() - began)
            if text and not try_say(say, text):
                return

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def report_while(say: Callable[[str], None], what: str, how_far: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Print `what` now, then every few seconds the progress (`how_far`, if not empty) and the elapsed time."""
    say(what)
    with report_elapsed(say, lambda spent: "  " + ", ".join(part for part in (how_far(), f"{spent:.0f} s") if part)):
        yield


class Bar(io.StringIO):
    """A file for tqdm to write to. `counted()` is its progress as text, `3 of 5 files`, and `then` when the bar is full."""

    def __init__(self, things: str, then: str) -> None:
        super().__init__()
        self._things, self._then, self._counted = things, then, ""

    def write(self, text: str) -> int:
        for done, total in _COUNTED.findall(text):
            self._counted = f"{done} of {total} {self._things}" if done != total else self._then
        return len(text)

    def counted(self) -> str:
        return self._counted


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
    """`untrained`, `after sft 200`, `after rl 20`"""
    stage, step = evaluation["stage"], evaluation["step"]
    return stage if stage == "untrained" else f"after {stage} {step}"


def is_unicode(text: str) -> bool:
    """False for half a surrogate pair, which JSON allows but files, tokenizers and banks do not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
