"""Deterministic thread interleaving: one thread runs at a time, and switches are drawn after each line of watched files.

The same seed gives the same interleaving, so failures are reproducible.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random


class Turns:
    def __init__(self, seed: int, files: Sequence[Path], often: float = 0.5) -> None:
        """`often`: probability of a thread switch at each line."""
        self._rng, self._files, self._often = Random(seed), {str(file) for file in files}, often
        self._mine = threading.local()
        self._back = threading.Semaphore(0)
        self.lines = 0
        """number of lines at which a switch was possible"""

    def play(self, actors: Sequence[Callable[[], None]]) -> None:
        """Run all actors to completion; raise the first error."""
        going, errors = [], []
        for actor in actors:
            turn = threading.Semaphore(0)
            thread = threading.Thread(target=self._act, args=(actor, turn, errors), daemon=True)
            thread.start()
            going.append((thread, turn))
        while going and not errors:
            thread, turn = self._rng.choice(going)
            turn.release()
            assert self._back.acquire(timeout=30), "somebody waits for what nobody will give"
            going = [(each, own) for each, own in going if not getattr(each, "over", False)]
        if errors:
            raise errors[0]

    def pause(self) -> None:
        """Let another thread run."""
        self._back.release()
        self._mine.turn.acquire()

    def _act(self, actor: Callable[[], None], turn: threading.Semaphore, errors: list[BaseException]) -> None:
        self._mine.turn = turn
        turn.acquire()
        sys.settrace(self._enter)
        try:
            actor()
        except BaseException as error:
            errors.append(error)
        finally:
            sys.settrace(None)
            threading.current_thread().over = True  # type: ignore[attr-defined]
            self._back.release()

    def _enter(self, frame, event, arg):
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame, event, arg):
        if event == "line":
            self.lines += 1
            if self._rng.random() < self._often:
                self.pause()
        return self._line


class TurnLock:
    """A reentrant lock that lets other threads run while one waits for it."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._owner, self._depth = turns, None, 0

    def acquire(self, blocking: bool = True) -> bool:
        if not blocking and self._owner not in (None, threading.get_ident()):
            return False
        self.__enter__()
        return True

    def release(self) -> None:
        self.__exit__()

    def __enter__(self) -> None:
        me = threading.get_ident()
        while self._owner not in (None, me):
            self._turns.pause()
        self._owner, self._depth = me, self._depth + 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
