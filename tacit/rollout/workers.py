"""Slow worlds in worker processes, on this machine or on a Ray cluster.

Slots are assigned to workers round-robin, so a step of all slots keeps every worker busy. A worker that hangs or dies is
replaced: the slot it was working on loses its episode, and the worlds of its other slots are rebuilt by replaying their
actions, since worlds are deterministic. A worker has at most MAX_IN_FLIGHT unanswered calls; further calls are queued. It
answers one call after the other, or, if the world is thread-safe (`Served.threads`), several at the same time.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

from tacit.core.errors import TacitError, first_line
from tacit.core.platform import LOCAL_CLUSTER, import_path, join_cluster
from tacit.core.simulator import Served
from tacit.core.types import Observation, StopReason, Task, Transition
from tacit.core.world import World
from tacit.rollout.worlds import SlotWorlds, SlowWorld, WorldFailure, WorldPool

Call = tuple[int, tuple[str, Any]]  # (slot, (method, argument)), as sent to a worker
PENDING = object()  # returned by `receive` if there is no message yet


class WorkerExited(Exception):
    """A worker process exited; the message says how."""


# A worker is a process that steps the worlds of some slots. Its first message means that it has started; then it answers calls
# with (slot, result), the first `threads` of them at the same time. `send` has no effect after it exited; `receive` returns its
# next message or PENDING, and raises `WorkerExited` if it exited; `leave` asks it to close its worlds and exit; `stop` kills
# it, after waiting up to `grace_s`. A launcher's `wait` returns when a worker has a message or exits, or after `limit_s`.


# Spawned, not forked: torch's threads do not survive a fork.
_SPAWN = multiprocessing.get_context("spawn")


class ProcessLauncher:
    """Workers as processes of this machine."""

    def start(self, make: Callable[[], World]) -> ProcessWorker:
        return ProcessWorker(make)

    def wait(self, workers: Sequence[ProcessWorker], limit_s: float) -> None:
        connection.wait([handle for worker in workers for handle in (worker.pipe, worker.sentinel)], limit_s)


class ProcessWorker:
    def __init__(self, make: Callable[[], World]) -> None:
        self.threads = count_threads(make)
        self.pipe, child_pipe = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(child_pipe, make), daemon=True)
        self.process.start()
        child_pipe.close()

    @property
    def sentinel(self) -> int:
        return self.process.sentinel

    def send(self, call: Call) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send(call)

    def receive(self) -> Any:
        try:
            if self.pipe.poll(0):
                return self.pipe.recv()
        except (EOFError, OSError):
            raise self._exited() from None
        if not self.process.is_alive() and not self.pipe.poll(0):
            raise self._exited()
        return PENDING

    def leave(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.close()

    def stop(self, grace_s: float = 0.0) -> None:
        if grace_s:
            self.process.join(grace_s)
        self.process.kill()
        self.process.join()
        self.leave()

    def _exited(self) -> WorkerExited:
        self.process.join(1)
        return WorkerExited(f"its process died (exit code {self.process.exitcode})")


def _serve(pipe: Connection, make: Callable[[], World]) -> None:
    # Ctrl-C reaches every process of a terminal. Workers ignore it; the parent closes their pipe. An empty handler instead of
    # SIG_IGN, because programs started by a world would inherit SIG_IGN.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    worlds = SlotWorlds(make)
    worlds.start()
    pipe.send(None)
    threads = count_threads(make)
    executor, sending = ThreadPoolExecutor(threads), threading.Lock()

    def answer(call: Call) -> None:
        answered = worlds.answer(*call)
        with sending:
            pipe.send(answered)

    while True:
        try:
            call = pipe.recv()
        except (EOFError, OSError):
            worlds.close()
            return
        if threads > 1:
            executor.submit(answer, call)
        else:  # in the main thread, as some simulators need
            answer(call)


def count_threads(make: Callable[[], World]) -> int:
    """Calls that a worker process answers at the same time."""
    return min(make.threads, MAX_IN_FLIGHT) if isinstance(make, Served) else 1


_START_S, _LEAVE_S = 120.0, 2.0  # timeouts, in seconds, for starting a worker and for closing its worlds

MAX_IN_FLIGHT = 8
"""maximum unanswered calls per worker: enough to keep it busy between polls, too few to fill its pipe"""

MAX_FAILED_STARTS = 3
"""times in a row that a worker may die while starting before an episode is lost; a cluster may place it on a dead machine
again"""


@dataclass
class _Slot:
    """The task and actions of a slot, to rebuild its world in another worker."""

    task: Task
    actions: list[str] = field(default_factory=list)
    stale: bool = False  # its worker was replaced, so replay the actions before the next step


class _WorkerLost(WorldFailure):
    """The whole worker is gone or hangs, not just one world."""


class WorkerPool(WorldPool):
    def __init__(
        self,
        make: Callable[[], World],
        processes: int = 4,
        timeout_s: float = 120.0,
        launcher: ProcessLauncher | RayLauncher | None = None,
    ) -> None:
        if processes < 1:
            raise ValueError(f"a worker pool needs at least one process, got {processes}")
        self._make, self._timeout_s = make, timeout_s
        self.launcher: Any = launcher or ProcessLauncher()
        self.workers: list[ProcessWorker | RayWorker] = [self.launcher.start(make) for _ in range(processes)]
        self._starting = set(range(processes))
        self._slots: list[_Slot] = []
        self._queued: list[list[Call]] = [[] for _ in self.workers]  # per worker, calls without an answer, in order
        self.in_flight = [0 for _ in self.workers]  # per worker, how many of them were sent
        self._failed_starts = [0 for _ in self.workers]  # per worker, how often in a row it died while starting
        self._launched_s = [0.0 for _ in self.workers]  # per worker, when it was last launched with calls waiting
        self._began_s: list[dict[int, float]] = [{} for _ in self.workers]
        """per worker, slot -> when it began the call that it is working on"""
        self._results: dict[int, Any] = {}  # slot -> result that was not collected yet

    @property
    def slowest_call(self) -> SlowWorld | None:
        now, slots = time.monotonic(), self._slots
        pending = [
            SlowWorld(slots[slot].task, now - began_s, self._timeout_s)
            for worker, running in enumerate(list(self._began_s))
            for slot, began_s in list(running.items())
            if worker not in self._starting and slot < len(slots)
        ]
        return max(pending, key=lambda call: call.seconds, default=None)

    def reset(self, tasks: Sequence[Task]) -> list[Observation | WorldFailure]:
        self.collect()  # for episodes that were interrupted
        self._slots = [_Slot(task) for task in tasks]
        self._send([(slot, ("reset", task)) for slot, task in enumerate(tasks)])
        results: dict[int, Any] = self.collect()
        return [results[slot] for slot in range(len(tasks))]

    def submit(self, actions: Sequence[tuple[int, str]]) -> None:
        calls: list[Call] = []
        for slot, action in actions:
            record = self._slots[slot]
            replay = ("replay", (record.task, list(record.actions), action))
            calls.append((slot, replay if record.stale else ("step", action)))
            record.stale = False
            record.actions.append(action)
        self._send(calls)

    def collect(self, limit_s: float | None = None) -> dict[int, Transition | WorldFailure]:
        until = math.inf if limit_s is None else time.monotonic() + limit_s
        self._poll()
        while busy := [worker for worker, queued in enumerate(self._queued) if queued]:
            now = time.monotonic()
            if now >= until:
                break
            left_s = min(until, *(self._deadline_s(worker) for worker in busy)) - now
            self.launcher.wait([self.workers[worker] for worker in busy], max(0.0, left_s))
            self._poll()
        results, self._results = self._results, {}
        return results

    def close(self) -> None:
        for worker in self.workers:
            worker.leave()
        for worker in self.workers:
            worker.stop(_LEAVE_S)
        self.workers, self._queued = [], []

    def _send(self, calls: list[Call]) -> None:
        for worker in range(len(self.workers)):
            if new := [call for call in calls if call[0] % len(self.workers) == worker]:
                if not self._queued[worker]:
                    self._launched_s[worker] = time.monotonic()
                self._queued[worker] += new
                self.send_queued(worker)

    def send_queued(self, worker: int) -> None:
        queued = self._queued[worker]
        while self.in_flight[worker] < min(MAX_IN_FLIGHT, len(queued)):
            self.workers[worker].send(queued[self.in_flight[worker]])
            self.in_flight[worker] += 1
        self._record_call_starts(worker)

    def _record_call_starts(self, worker: int) -> None:
        """Record when the worker began its first calls: it answers them in order, `threads` at a time."""
        now, before = time.monotonic(), self._began_s[worker]
        running = self._queued[worker][: self.workers[worker].threads]
        self._began_s[worker] = {slot: before.get(slot, now) for slot, _ in running}

    def _poll(self) -> None:
        """Collect available results. If a worker failed, its first queued slot loses its episode."""
        for worker in range(len(self.workers)):
            while (queued := self._queued[worker]) and (message := self._receive(worker)) is not PENDING:
                slot, result = message
                rest = [call for call in queued if call[0] != slot]
                self._results[slot] = result
                self._queued[worker] = rest
                self.in_flight[worker] -= 1
                if not isinstance(result, _WorkerLost):
                    self.send_queued(worker)
                    continue
                for other in range(worker, len(self._slots), len(self.workers)):
                    self._slots[other].stale = other != slot
                self._queued[worker] = []
                for queued_slot, (kind, argument) in rest:  # unanswered calls: rebuild their worlds first
                    record = self._slots[queued_slot]
                    record.stale = False
                    if kind != "reset":
                        kind, argument = "replay", (record.task, record.actions[:-1], record.actions[-1])
                    self._queued[worker].append((queued_slot, (kind, argument)))
                self._replace(worker)

    def _receive(self, worker: int) -> Any:
        """The next (slot, result), or PENDING. If the worker failed, its oldest call has. Starting (imports) has its own
        timeout and does not count as the world's time."""
        oldest, _ = self._queued[worker][0]
        try:
            while (message := self.workers[worker].receive()) is not PENDING:
                if worker not in self._starting:
                    return message
                self._starting.discard(worker)
                self._failed_starts[worker] = 0
                self._began_s[worker] = {}
                self._record_call_starts(worker)
        except WorkerExited as exited:
            if worker in self._starting and self._failed_starts[worker] < MAX_FAILED_STARTS:
                self._failed_starts[worker] += 1
                self._replace(worker)
                return PENDING
            return oldest, _WorkerLost(StopReason.WORLD_ERROR, str(exited))
        if time.monotonic() > self._deadline_s(worker):
            return oldest, _WorkerLost(StopReason.WORLD_HANG, f"no answer within {self._timeout_s:g} s")
        return PENDING

    def _deadline_s(self, worker: int) -> float:
        if worker in self._starting:
            return self._launched_s[worker] + max(_START_S, self._timeout_s)
        return min(self._began_s[worker].values()) + self._timeout_s

    def _replace(self, worker: int) -> None:
        """Start another worker for these slots and resend the queued calls, which must rebuild their worlds."""
        self.workers[worker].stop()
        self.workers[worker] = self.launcher.start(self._make)
        self._starting.add(worker)
        self._launched_s[worker], self.in_flight[worker], self._began_s[worker] = time.monotonic(), 0, {}
        self.send_queued(worker)


SETTING = "--workers-at"


class RayLauncher:
    """Workers as Ray actors, spread over the cluster. If a machine is lost, its workers start elsewhere."""

    def __init__(self, address: str, workers: int) -> None:
        self._ray = join_cluster(address, SETTING, workers)
        is_local = address == LOCAL_CLUSTER
        free = int(self._ray.available_resources().get("CPU", 0))
        if not is_local and free < workers:
            raise TacitError(
                f"workers = {workers}, but the Ray cluster at {address!r} has {free} free CPU(s), and each worker needs one; "
                f"use --workers {max(1, free)}, or a larger cluster."
            )
        self._remote = self._ray.remote(SlotWorlds).options(
            num_cpus=0 if is_local else 1,  # a private Ray has only this machine's CPUs, which the engine may have reserved
            max_restarts=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {"PYTHONPATH": import_path()}},
        )

    def start(self, make: Callable[[], World]) -> RayWorker:
        return RayWorker(self._ray, self._remote.remote(make))

    def wait(self, workers: Sequence[RayWorker], limit_s: float) -> None:
        self._ray.wait([worker.pending[0] for worker in workers], timeout=limit_s)


class RayWorker:
    threads = 1

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.pending = [actor.start.remote()]  # messages not received yet, in order

    def send(self, call: Call) -> None:
        self.pending.append(self._actor.answer.remote(*call))

    def receive(self) -> Any:
        if not self._ray.wait(self.pending[:1], timeout=0)[0]:
            return PENDING
        try:
            return self._ray.get(self.pending.pop(0))
        except self._ray.exceptions.RayError as error:
            raise WorkerExited(f"its Ray actor died: {type(error).__name__}: {first_line(error)}") from error

    def leave(self) -> None:
        if self._ray.is_initialized():  # otherwise the actor ended with Ray
            self.pending = [self._actor.close.remote()]

    def stop(self, grace_s: float = 0.0) -> None:
        if not self._ray.is_initialized():
            return
        if grace_s:
            self._ray.wait(self.pending[:1], timeout=grace_s)
        self._ray.kill(self._actor)
