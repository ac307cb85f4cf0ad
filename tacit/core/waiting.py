"""Something to read while something long goes on."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 5.0
_COUNTED = re.compile(r"(\d+)/(\d+) \[")


def heard(say: Callable[[str], None], line: str) -> bool:
    """Say it from a thread of its own. Where nobody reads any more (`| head`), that is for the command itself to find out, and
    no error of the thread's."""
    try:
        say(line)
    except BrokenPipeError:
        return False
    return True


@contextmanager
def reminded(say: Callable[[str], None], line: Callable[[float], str]) -> Iterator[None]:
    """Every few seconds the `line` for the seconds it has taken; none for what is over sooner."""
    began, over = time.monotonic(), threading.Event()

    def remind() -> None:
        while not over.wait(EVERY_S) and heard(say, line(time.monotonic() - began)):
            pass

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def said_while(say: Callable[[str], None], what: str, how_far: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Say `what` now, and every few seconds how far it is (where that is known) and how long it has taken."""
    say(what)
    with reminded(say, lambda spent: "  " + ", ".join(part for part in (how_far(), f"{spent:.0f} s") if part)):
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
