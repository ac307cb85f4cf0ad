"""A command that is told to stop: SIGTERM (a batch system, a container that ends) and SIGHUP (a terminal that is closed) are
answered as ^C is. What is open is closed, and whoever has begun something says how it goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALED = 128
"""a shell's exit status of a command that signal n ended is so much more than n"""


class Stopped(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def stopping_as_interrupts() -> Iterator[None]:
    """Only signals that would end this process at once: one that is ignored, as by `nohup`, stays ignored."""

    def stop(number: int, frame: Any) -> None:
        raise Stopped(number)

    here = threading.current_thread() is threading.main_thread()
    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    ours = [number for number in known if here and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def exit_status(stop: KeyboardInterrupt) -> int:
    return SIGNALED + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)
