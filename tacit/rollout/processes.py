"""Workers as processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

from tacit.core.world import World
from tacit.rollout.stages import NOTHING, READY, Call, Ended, Stage

# Spawned, not forked: torch's threads do not survive a fork.
_SPAWN = multiprocessing.get_context("spawn")


class Processes:
    def start(self, make: Callable[[], World]) -> Process:
        return Process(make)

    def wait(self, workers: Sequence[Process], limit_s: float) -> None:
        connection.wait([thing for worker in workers for thing in (worker.line, worker.sentinel)], limit_s)


class Process:
    def __init__(self, make: Callable[[], World]) -> None:
        self.line, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, make), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def sentinel(self) -> int:
        return self._process.sentinel

    def send(self, call: Call) -> None:
        with contextlib.suppress(OSError):
            self.line.send(call)

    def answer(self) -> Any:
        try:
            if self.line.poll(0):
                return self.line.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if not self._process.is_alive() and not self.line.poll(0):
            raise self._ended()
        return NOTHING

    def leave(self) -> None:
        with contextlib.suppress(OSError):
            self.line.close()

    def stop(self, grace_s: float = 0.0) -> None:
        if grace_s:
            self._process.join(grace_s)
        self._process.kill()
        self._process.join()
        self.leave()

    def _ended(self) -> Ended:
        self._process.join(1)
        return Ended(f"its process died (exit code {self._process.exitcode})")


def _serve(line: Connection, make: Callable[[], World]) -> None:
    # Ctrl-C reaches every process of a terminal, and means the one that waits for these: it closes their line. A handler that
    # does nothing, and not SIG_IGN, which programs that a world starts would inherit.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    stage = Stage(make)
    line.send(READY)
    while True:
        try:
            call = line.recv()
        except (EOFError, OSError):
            stage.close()
            return
        line.send(stage.call(*call))
