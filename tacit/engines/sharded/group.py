"""The driver's side of the ranks: every call goes to all ranks, and all must answer within a timeout.

If a rank is lost, fails or does not answer in time, the error names it, and all ranks are stopped, because the others are stuck
in a collective operation.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any, NoReturn

from tacit.core.errors import EngineLost, TacitError
from tacit.engines.sharded.launch import POLL_S, Launcher, Worker, WorkerLost, await_connections, stop_workers
from tacit.engines.sharded.messages import serialize

GRACE_S = 20.0  # seconds for the other ranks to answer once one has failed: bad input fails on all ranks at about the same time
REMEDY = "Resume from the last checkpoint with `tacit train --resume RUN`; if there is none yet, repeat the command."


class RankGroup:
    def __init__(self, launcher: Launcher, ranks: int, device: str, start_timeout_s: float, timeout_s: float):
        self.size, self.timeout_s, self.closed = ranks, timeout_s, ""
        self.asking = threading.RLock()  # held during a call, since another thread may request hidden states during an update
        self.members = [Worker(number, launcher) for number in range(ranks)]
        self._end = weakref.finalize(self, stop_workers, self.members)
        deadline = time.monotonic() + start_timeout_s
        try:
            for rank in self.members:
                rank.launch()
            try:
                if late := await_connections(self.members, deadline):
                    self._fail_late(late, "starting", "start_timeout_s")
            except WorkerLost as lost:
                self._fail_lost(lost, "starting")
            place = self._ask("open_store", (), deadline, "start_timeout_s")[0]
            self._ask("join", (ranks, place, device, timeout_s), deadline, "start_timeout_s")
        except BaseException:
            self.close()
            raise

    def ask(self, what: str, *arguments: Any) -> list[Any]:
        """Call method `what` on every rank. Returns their results in order of the ranks."""
        if self.closed:
            raise EngineLost(f"the ranks of this policy were stopped: {self.closed} {REMEDY}")
        with self.asking:
            return self._ask(what, arguments, time.monotonic() + self.timeout_s, "timeout_s")

    def _ask(self, what: str, arguments: tuple[Any, ...], deadline: float, setting: str) -> list[Any]:
        message = serialize((what, arguments))
        try:
            for rank in self.members:
                rank.send(message, deadline - time.monotonic())
            return self._answers(what, deadline, setting)
        except WorkerLost as lost:
            self._fail_lost(lost, what)
        except (TacitError, ValueError):
            raise
        except BaseException:  # Ctrl-C: pending answers would be taken for those of the next call
            self.close(f"they were interrupted in {what!r}.")
            raise

    def close(self, why: str = "they were closed.") -> None:
        self.closed = self.closed or why
        self._end()

    def _answers(self, what: str, deadline: float, setting: str) -> list[Any]:
        answers: dict[int, Any] = {}
        failures: dict[int, tuple[BaseException | None, str]] = {}
        pending: dict[Any, Worker] = {rank.channel.connection: rank for rank in self.members}
        while pending:
            arrived = wait(list(pending), timeout=max(0.0, min(POLL_S, deadline - time.monotonic())))
            for connection in arrived:
                rank = pending[connection]
                fine, answer = rank.receive()
                del pending[connection]
                if fine:
                    answers[rank.number] = answer
                else:
                    failures[rank.number] = answer
                    deadline = min(deadline, time.monotonic() + GRACE_S)
            late = time.monotonic() > deadline
            if pending and (late or not (arrived or failures)):  # if a machine is lost, its connection is not closed
                for rank in pending.values():
                    rank.check_alive()
            if pending and late:
                if failures:
                    break
                self._fail_late(list(pending.values()), what, setting)
        if failures:
            self._fail(what, failures)
        return [answers[number] for number in range(self.size)]

    def _fail(self, what: str, failures: dict[int, tuple[BaseException | None, str]]) -> NoReturn:
        """Raise the error. If all ranks failed (bad input), they keep running. Otherwise they are stopped, and an EngineLost,
        which may suggest a setting, is preferred to other errors."""
        number, (error, text) = min(failures.items(), key=lambda item: (not isinstance(item[1][0], EngineLost), item[0]))
        alike = len(failures) == self.size and all(own is not None for own, _ in failures.values())
        if error is not None and alike and not isinstance(error, EngineLost):
            raise error
        others = f" The other {self.size - len(failures)} waited for it." if len(failures) < self.size else ""
        why = f"rank {number} of {self.size} ({self.members[number].started.name}) failed in {what!r}: {text}.{others}"
        self.close(why)
        settings = error.settings if isinstance(error, EngineLost) else {}
        raise EngineLost(f"{why} All ranks were stopped. {REMEDY}", settings) from error

    def _fail_lost(self, lost: WorkerLost, what: str) -> NoReturn:
        rank, words = lost.worker, lost.worker.last_output()
        why = f"rank {rank.number} of {self.size} ({rank.started.name}) was lost in {what!r}: {lost}."
        self.close(why)
        raise EngineLost(f"{why}{words} All ranks were stopped. {REMEDY}") from lost

    def _fail_late(self, ranks: Sequence[Worker], what: str, setting: str) -> NoReturn:
        names = " and ".join(map(str, ranks))
        why = f"waited in {what!r} for {names} of {self.size}, until the limit of --engine.{setting}."
        self.close(why)
        raise EngineLost(f"{why} All ranks were stopped. Raise the limit, or find out what they wait for. {REMEDY}")
