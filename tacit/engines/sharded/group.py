"""The driver's side of the ranks: all of them are asked the same, and all answer, within a limit.

    ranks = RankGroup(launcher, 2, "cpu", start_timeout_s, timeout_s)
    answers = ranks.ask("logprobs", ...)      # one answer a rank

A rank that is lost, fails or does not answer in time is named. Then the others wait for it in the middle of an exchange and
cannot be used any more, so all are ended.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, NoReturn

from tacit.core.errors import EngineLost, TacitError
from tacit.engines.sharded.launch import Launcher, Started
from tacit.engines.sharded.messages import Line, Lost, caller, written

LOOK_S = 1.0
"""how often it is asked whether those who are waited for still live"""
GRACE_S = 20.0
"""how long the others may take once one has failed; what is wrong with all is told by all at once"""
REMEDY = "Go on from the last checkpoint: `tacit train --resume RUN`; where there is no run yet, give the same command again."


@dataclass
class _Rank:
    number: int
    started: Started
    line: Line | None = None


class RankGroup:
    def __init__(self, launcher: Launcher, ranks: int, device: str, start_timeout_s: float, timeout_s: float):
        self.size, self.timeout_s, self.closed = ranks, timeout_s, ""
        self._launcher = launcher  # keeps the logs of its ranks
        self._asking = threading.RLock()  # hidden states may be asked for while something else is learned
        key = secrets.token_bytes(32)
        self._ranks: list[_Rank] = []
        self._end = weakref.finalize(self, _end, self._ranks)
        deadline = time.monotonic() + start_timeout_s
        try:
            with socket.create_server((launcher.host, 0), backlog=ranks) as door:
                address = (launcher.host, door.getsockname()[1])
                for number in range(ranks):
                    self._ranks.append(_Rank(number, launcher.start(number, address, key)))
                self._let_in(door, key, deadline)
            place = self._ask("open_store", (), deadline, "start_timeout_s")[0]
            self._ask("join", (ranks, place, device, timeout_s), deadline, "start_timeout_s")
        except BaseException:
            self.close()
            raise

    def ask(self, what: str, *arguments: Any) -> list[Any]:
        """Have every rank do `what`; their answers in order."""
        if self.closed:
            raise EngineLost(f"the ranks of this policy have ended: {self.closed} {REMEDY}")
        with self._asking:
            return self._ask(what, arguments, time.monotonic() + self.timeout_s, "timeout_s")

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Nobody else asks until the end of the block: who waits for a rank need not wait for an update besides."""
        with self._asking:
            yield

    def _ask(self, what: str, arguments: tuple[Any, ...], deadline: float, setting: str) -> list[Any]:
        message = written((what, arguments))
        try:
            for rank in self._ranks:
                try:
                    self._line(rank).limit(max(0.1, deadline - time.monotonic()))
                    self._line(rank).send(message)
                except Lost as error:
                    self._lost(rank, what, error)
            return self._answers(what, deadline, setting)
        except (TacitError, ValueError):
            raise
        except BaseException:  # Ctrl-C: answers that nobody heard would be taken for those to the next question
            self.close(f"they were interrupted in {what!r}.")
            raise

    def close(self, why: str = "they were closed.") -> None:
        self.closed = self.closed or why
        self._end()

    def _let_in(self, door: socket.socket, key: bytes, deadline: float) -> None:
        """Each rank calls once it has started."""
        while missing := [rank for rank in self._ranks if rank.line is None]:
            self._look_after(missing, "starting")
            if time.monotonic() > deadline:
                self._late(missing, "starting", "start_timeout_s")
            if (called := caller(door, key, LOOK_S, max(0.1, deadline - time.monotonic()))) is not None:
                self._ranks[called[0]].line = called[1]

    def _answers(self, what: str, deadline: float, setting: str) -> list[Any]:
        answers: dict[int, Any] = {}
        failures: dict[int, tuple[BaseException | None, str]] = {}
        pending = {self._line(rank).connection: rank for rank in self._ranks}
        while pending:
            heard = wait(list(pending), timeout=max(0.0, min(LOOK_S, deadline - time.monotonic())))
            for connection in heard:
                rank = pending[connection]  # type: ignore[index]
                try:
                    fine, answer = self._line(rank).receive()
                except Lost as error:
                    self._lost(rank, what, error)
                del pending[connection]  # type: ignore[arg-type]
                if fine:
                    answers[rank.number] = answer
                else:
                    failures[rank.number] = answer
                    deadline = min(deadline, time.monotonic() + GRACE_S)
            late = time.monotonic() > deadline
            if pending and (late or not (heard or failures)):  # a machine that is gone closes no line
                self._look_after(list(pending.values()), what)
            if pending and late:
                if failures:
                    break
                self._late(list(pending.values()), what, setting)
        if failures:
            self._fail(what, failures)
        return [answers[number] for number in range(self.size)]

    def _fail(self, what: str, failures: dict[int, tuple[BaseException | None, str]]) -> NoReturn:
        """What is wrong with all ranks alike (bad input) is raised as it is, and they can go on. Otherwise they are ended, and
        who says what would help speaks for all."""
        number, (error, told) = min(failures.items(), key=lambda known: (not isinstance(known[1][0], EngineLost), known[0]))
        alike = len(failures) == self.size and all(own is not None for own, _ in failures.values())
        if error is not None and alike and not isinstance(error, EngineLost):
            raise error
        others = f" The other {self.size - len(failures)} waited for it." if len(failures) < self.size else ""
        why = f"rank {number} of {self.size} ({self._ranks[number].started.name}) failed in {what!r}: {told}.{others}"
        self.close(why)
        ended = EngineLost(f"{why} All ranks have been ended. {REMEDY}")
        ended.settings = error.settings if isinstance(error, EngineLost) else {}
        raise ended from error

    def _look_after(self, ranks: list[_Rank], what: str) -> None:
        for rank in ranks:
            if rank.started.ended() is not None:
                self._lost(rank, what, None)

    def _lost(self, rank: _Rank, what: str, error: BaseException | None) -> NoReturn:
        how = eventually(rank.started.ended) or f"its line broke off ({type(error).__name__}: {error})"
        words = rank.started.last_words()
        said = f" Its last words: {words}" if words else ""
        why = f"rank {rank.number} of {self.size} ({rank.started.name}) was lost in {what!r}: {how}."
        self.close(why)
        raise EngineLost(f"{why}{said} All ranks have been ended. {REMEDY}") from error

    def _late(self, ranks: list[_Rank], what: str, setting: str) -> NoReturn:
        names = " and ".join(f"rank {rank.number} ({rank.started.name})" for rank in ranks)
        why = f"waited in {what!r} for {names} of {self.size}, until the limit of --engine.{setting}."
        self.close(why)
        raise EngineLost(f"{why} All ranks have been ended. Give them longer, or see what they wait for. {REMEDY}")

    def _line(self, rank: _Rank) -> Line:
        assert rank.line is not None
        return rank.line


def eventually(ask: Callable[[], str | None], limit_s: float = 2.0) -> str | None:
    """A line is closed a moment before its process is gone."""
    deadline = time.monotonic() + limit_s
    while (found := ask()) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def _end(ranks: list[_Rank]) -> None:
    for rank in ranks:
        if rank.line is not None:
            rank.line.close()
        rank.started.stop()
