"""Slow worlds in worker processes.

Slots are dealt to workers round-robin, so a step of all slots keeps every worker busy. A worker that hangs or dies is
replaced, and its *other* slots are brought back to where they were by replaying their actions: worlds are deterministic.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from tacit.core.simulator import close_simulator, start_simulator
from tacit.core.types import Observation, StopReason, Task, Transition
from tacit.core.world import World
from tacit.rollout.worlds import Broken

_START_S, _LEAVE_S = 120.0, 2.0
"""how long a process may take to start and to close its worlds"""


@dataclass
class _Slot:
    """What it takes to rebuild a slot's world elsewhere."""

    task: Task
    actions: list[str] = field(default_factory=list)
    stale: bool = False
    """the worker that held it is gone; replay before the next step"""


class _WorkerLost(Broken):
    """The whole process is gone or stuck, not just one world."""


class Workers:
    def __init__(self, make: Callable[[], World], processes: int = 4, timeout_s: float = 120.0) -> None:
        if processes < 1:
            raise ValueError(f"a pool of workers needs at least one process, got {processes}")
        self._make, self._timeout_s = make, timeout_s
        # Spawned, not forked: torch's threads do not survive a fork.
        self._context = multiprocessing.get_context("spawn")
        self._workers = [self._start() for _ in range(processes)]
        self._starting = set(range(processes))
        self._slots: list[_Slot] = []

    def reset(self, tasks: Sequence[Task]) -> list[Observation | Broken]:
        self._slots = [_Slot(task) for task in tasks]
        return self._ask([(slot, ("reset", task)) for slot, task in enumerate(tasks)])

    def step(self, actions: Sequence[tuple[int, str]]) -> list[Transition | Broken]:
        calls = []
        for slot, action in actions:
            record = self._slots[slot]
            calls.append((slot, ("replay", (record.task, list(record.actions), action)) if record.stale else ("step", action)))
            record.stale = False
            record.actions.append(action)
        return self._ask(calls)

    def close(self) -> None:
        for _, connection in self._workers:
            with contextlib.suppress(OSError):
                connection.close()
        for process, _ in self._workers:
            # A worker whose pipe is closed closes its worlds and goes; one that hangs is not waited for.
            process.join(_LEAVE_S)
            process.kill()
            process.join()
        self._workers = []

    def _start(self) -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._make), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def _ask(self, calls: list[tuple[int, tuple[str, Any]]]) -> list[Any]:
        """Send each worker its calls, collect answers in order; a worker that fails costs one slot its episode."""
        answers: dict[int, Any] = {}
        waiting: list[list[tuple[int, tuple[str, Any]]]] = [[] for _ in self._workers]
        for slot, call in calls:
            waiting[slot % len(self._workers)].append((slot, call))
        for worker, queue in enumerate(waiting):
            self._send(worker, queue)
        for worker, queue in enumerate(waiting):
            while queue:
                slot, _ = queue[0]
                answer = self._receive(worker)
                if isinstance(answer, _WorkerLost):
                    self._replace(worker, lost=slot)
                    queue = self._redo(queue[1:])
                    self._send(worker, queue)
                else:
                    queue = queue[1:]
                answers[slot] = answer
        return [answers[slot] for slot, _ in calls]

    def _send(self, worker: int, queue: Sequence[tuple[int, tuple[str, Any]]]) -> None:
        if queue:
            with contextlib.suppress(OSError):
                self._workers[worker][1].send(list(queue))

    def _receive(self, worker: int) -> Any:
        """The next answer. A process that is still starting (imports) gets time of its own: that is not the world's."""
        if worker in self._starting:
            ready = self._wait(worker, max(_START_S, self._timeout_s))
            if isinstance(ready, _WorkerLost):
                return ready
            self._starting.discard(worker)
        return self._wait(worker, self._timeout_s)

    def _wait(self, worker: int, timeout_s: float) -> Any:
        process, connection = self._workers[worker]
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                if connection.poll(min(left, 1.0)):
                    return connection.recv()
            except (EOFError, OSError):
                return _died(process)
            if not process.is_alive() and not connection.poll(0):
                return _died(process)
        return _WorkerLost(StopReason.WORLD_HANG, f"no answer within {timeout_s:g} s")

    def _replace(self, worker: int, lost: int) -> None:
        process, connection = self._workers[worker]
        process.kill()
        process.join()
        connection.close()
        self._workers[worker] = self._start()
        self._starting.add(worker)
        for slot in range(worker, len(self._slots), len(self._workers)):
            self._slots[slot].stale = slot != lost

    def _redo(self, queue: Sequence[tuple[int, tuple[str, Any]]]) -> list[tuple[int, tuple[str, Any]]]:
        """Calls the dead worker never answered, as calls that rebuild their world first."""
        redone = []
        for slot, (kind, argument) in queue:
            record = self._slots[slot]
            record.stale = False
            if kind != "reset":
                argument = (record.task, record.actions[:-1], record.actions[-1])
                kind = "replay"
            redone.append((slot, (kind, argument)))
        return redone


def _died(process: Any) -> _WorkerLost:
    process.join(1)
    return _WorkerLost(StopReason.WORLD_ERROR, f"its process died (exit code {process.exitcode})")


def _serve(connection: Connection, make: Callable[[], World]) -> None:
    """A worker: a world per slot, one call at a time."""
    worlds: dict[int, World] = {}
    start_simulator(make)
    connection.send("ready")
    while True:
        try:
            calls = connection.recv()
        except (EOFError, OSError):
            for world in worlds.values():
                with contextlib.suppress(Exception):
                    world.close()
            close_simulator(make)
            return
        for slot, (kind, argument) in calls:
            try:
                answer: Any = _call(worlds, slot, kind, argument, make)
            except Exception as error:
                answer = Broken(StopReason.WORLD_ERROR, f"{type(error).__name__}: {error}")
                with contextlib.suppress(Exception):
                    worlds.pop(slot).close()
            connection.send(answer)


def _call(worlds: dict[int, World], slot: int, kind: str, argument: Any, make: Callable[[], World]) -> Any:
    if slot not in worlds:
        worlds[slot] = make()
    world = worlds[slot]
    if kind == "reset":
        return world.reset(argument)
    if kind == "step":
        return world.step(argument)
    task, actions, action = argument
    world.reset(task)
    for past in actions:
        world.step(past)
    return world.step(action)
