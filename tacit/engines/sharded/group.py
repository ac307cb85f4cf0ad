"""The driver's side of the ranks: every call goes to all of them, and all answer within a timeout.

A rank that is lost, fails or does not answer in time is named. The others are then stuck in a collective operation, so all are
stopped.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, NoReturn

from tacit.core.errors import EngineLost, TacitError
from tacit.engines.sharded.launch import LaunchedProcess, Launcher
from tacit.engines.sharded.messages import Channel, ConnectionLost, accept_channel, serialize

POLL_S = 1.0
"""between checks that awaited processes are alive"""
GRACE_S = 20.0
"""for the other ranks to answer once one has failed; an error on all ranks arrives from all at once"""
REMEDY = "Go on from the last checkpoint: `tacit train --resume RUN`; where there is no run yet, give the same command again."


@dataclass
class _Rank:
    number: int
    started: LaunchedProcess
    channel: Channel | None = None


class RankGroup:
    def __init__(self, launcher: Launcher, ranks: int, device: str, start_timeout_s: float, timeout_s: float):
        self.size, self.timeout_s, self.closed = ranks, timeout_s, ""
        self._launcher = launcher  # owns the ranks' logs
        self.asking = threading.RLock()
        """held while the ranks are asked: hidden states may be requested during an update"""
        key = secrets.token_bytes(32)
        self._ranks: list[_Rank] = []
        self._end = weakref.finalize(self, _end, self._ranks)
        deadline = time.monotonic() + start_timeout_s
        try:
            with socket.create_server((launcher.host, 0), backlog=ranks) as listener:
                address = (launcher.host, listener.getsockname()[1])
                for number in range(ranks):
                    self._ranks.append(_Rank(number, launcher.start(number, address, key)))
                # Wait for each rank to connect.
                while missing := [rank for rank in self._ranks if rank.channel is None]:
                    self._check_alive(missing, "starting")
                    if time.monotonic() > deadline:
                        self._fail_late(missing, "starting", "start_timeout_s")
                    if (called := accept_channel(listener, key, POLL_S, max(0.1, deadline - time.monotonic()))) is not None:
                        self._ranks[called[0]].channel = called[1]
            place = self._ask("open_store", (), deadline, "start_timeout_s")[0]
            self._ask("join", (ranks, place, device, timeout_s), deadline, "start_timeout_s")
        except BaseException:
            self.close()
            raise

    def ask(self, what: str, *arguments: Any) -> list[Any]:
        """Call method `what` on every rank. Returns their answers in order."""
        if self.closed:
            raise EngineLost(f"the ranks of this policy have stopped: {self.closed} {REMEDY}")
        with self.asking:
            return self._ask(what, arguments, time.monotonic() + self.timeout_s, "timeout_s")

    def _ask(self, what: str, arguments: tuple[Any, ...], deadline: float, setting: str) -> list[Any]:
        message = serialize((what, arguments))
        try:
            for rank in self._ranks:
                try:
                    self._channel(rank).limit(max(0.1, deadline - time.monotonic()))
                    self._channel(rank).send(message)
                except ConnectionLost as error:
                    self._fail_lost(rank, what, error)
            return self._answers(what, deadline, setting)
        except (TacitError, ValueError):
            raise
        except BaseException:  # Ctrl-C: pending answers would be mistaken for those to the next call
            self.close(f"they were interrupted in {what!r}.")
            raise

    def close(self, why: str = "they were closed.") -> None:
        self.closed = self.closed or why
        self._end()

    def _answers(self, what: str, deadline: float, setting: str) -> list[Any]:
        answers: dict[int, Any] = {}
        failures: dict[int, tuple[BaseException | None, str]] = {}
        pending = {self._channel(rank).connection: rank for rank in self._ranks}
        while pending:
            heard = wait(list(pending), timeout=max(0.0, min(POLL_S, deadline - time.monotonic())))
            for connection in heard:
                rank = pending[connection]  # type: ignore[index]
                try:
                    fine, answer = self._channel(rank).receive()
                except ConnectionLost as error:
                    self._fail_lost(rank, what, error)
                del pending[connection]  # type: ignore[arg-type]
                if fine:
                    answers[rank.number] = answer
                else:
                    failures[rank.number] = answer
                    deadline = min(deadline, time.monotonic() + GRACE_S)
            late = time.monotonic() > deadline
            if pending and (late or not (heard or failures)):  # a lost machine closes no connection
                self._check_alive(list(pending.values()), what)
            if pending and late:
                if failures:
                    break
                self._fail_late(list(pending.values()), what, setting)
        if failures:
            self._fail(what, failures)
        return [answers[number] for number in range(self.size)]

    def _fail(self, what: str, failures: dict[int, tuple[BaseException | None, str]]) -> NoReturn:
        """An error of all ranks (bad input) is raised as it is, and they can go on. Otherwise they are stopped, and an error
        with a suggested setting is preferred."""
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

    def _check_alive(self, ranks: list[_Rank], what: str) -> None:
        for rank in ranks:
            if rank.started.exit_reason() is not None:
                self._fail_lost(rank, what, None)

    def _fail_lost(self, rank: _Rank, what: str, error: BaseException | None) -> NoReturn:
        how = poll_until(rank.started.exit_reason) or f"its connection broke ({type(error).__name__}: {error})"
        words = rank.started.last_output()
        said = f" Its last words: {words}" if words else ""
        why = f"rank {rank.number} of {self.size} ({rank.started.name}) was lost in {what!r}: {how}."
        self.close(why)
        raise EngineLost(f"{why}{said} All ranks have been ended. {REMEDY}") from error

    def _fail_late(self, ranks: list[_Rank], what: str, setting: str) -> NoReturn:
        names = " and ".join(f"rank {rank.number} ({rank.started.name})" for rank in ranks)
        why = f"waited in {what!r} for {names} of {self.size}, until the limit of --engine.{setting}."
        self.close(why)
        raise EngineLost(f"{why} All ranks have been ended. Give them longer, or see what they wait for. {REMEDY}")

    def _channel(self, rank: _Rank) -> Channel:
        assert rank.channel is not None
        return rank.channel


def poll_until(ask: Callable[[], str | None], limit_s: float = 2.0) -> str | None:
    """Poll for up to `limit_s`: a connection closes a moment before its process has exited."""
    deadline = time.monotonic() + limit_s
    while (found := ask()) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def _end(ranks: list[_Rank]) -> None:
    for rank in ranks:
        if rank.channel is not None:
            rank.channel.close()
        rank.started.stop()
