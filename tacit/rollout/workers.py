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
from multiprocessing.connection import Connection, wait
from typing import Any

from tacit.core.answers import as_observation, as_transition
from tacit.core.simulator import close_simulator, start_simulator
from tacit.core.types import Observation, StopReason, Task, Transition
from tacit.core.world import World
from tacit.rollout.worlds import Broken

_START_S, _LEAVE_S = 120.0, 2.0
"""how long a process may take to start and to close its worlds"""

_NOTHING = object()
"""no answer yet"""

_Call = tuple[int, tuple[str, Any]]
"""(slot, (what to do, with what))"""


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
    def __init__(
        self, make: Callable[[], World], processes: int = 4, timeout_s: float = 120.0, as_they_come: bool = False
    ) -> None:
        """`as_they_come`: answers are taken when they are there (see `ThinkingWorlds`), which pays where worlds are slow."""
        if processes < 1:
            raise ValueError(f"a pool of workers needs at least one process, got {processes}")
        self._make, self._timeout_s, self.as_they_come = make, timeout_s, as_they_come
        # Spawned, not forked: torch's threads do not survive a fork.
        self._context = multiprocessing.get_context("spawn")
        self._workers = [self._start() for _ in range(processes)]
        self._starting = set(range(processes))
        self._slots: list[_Slot] = []
        self._owed: list[list[_Call]] = [[] for _ in self._workers]
        """calls each worker has not answered yet, in order"""
        self._since_s = [0.0 for _ in self._workers]
        """when each worker began with the first of them"""
        self._come: list[tuple[int, Any]] = []
        """answers that nobody has asked for yet"""

    def reset(self, tasks: Sequence[Task]) -> list[Observation | Broken]:
        while any(self._owed):  # by episodes that were broken off
            self.ready(wait=True)
        self._slots, self._come = [_Slot(task) for task in tasks], []
        return self._ask([(slot, ("reset", task)) for slot, task in enumerate(tasks)])

    def step(self, actions: Sequence[tuple[int, str]]) -> list[Transition | Broken]:
        return self._ask(self._steps(actions))

    def begin(self, actions: Sequence[tuple[int, str]]) -> None:
        self._hand_out(self._steps(actions))

    def ready(self, wait: bool) -> list[tuple[int, Transition | Broken]]:
        self._look()
        while wait and not self._come and any(self._owed):
            self._sleep()
            self._look()
        come, self._come = self._come, []
        return come

    def close(self) -> None:
        for _, connection in self._workers:
            with contextlib.suppress(OSError):
                connection.close()
        for process, _ in self._workers:
            # A worker whose pipe is closed closes its worlds and goes; one that hangs is not waited for.
            process.join(_LEAVE_S)
            process.kill()
            process.join()
        self._workers, self._owed = [], []

    def _start(self) -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._make), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def _steps(self, actions: Sequence[tuple[int, str]]) -> list[_Call]:
        calls: list[_Call] = []
        for slot, action in actions:
            record = self._slots[slot]
            calls.append((slot, ("replay", (record.task, list(record.actions), action)) if record.stale else ("step", action)))
            record.stale = False
            record.actions.append(action)
        return calls

    def _ask(self, calls: list[_Call]) -> list[Any]:
        """All answers, in the order of the calls."""
        self._hand_out(calls)
        wanted = {slot for slot, _ in calls}
        answers: dict[int, Any] = {}
        others: list[tuple[int, Any]] = []
        while len(answers) < len(wanted):
            for slot, answer in self.ready(wait=True):
                if slot in wanted:
                    answers[slot] = answer
                else:
                    others.append((slot, answer))
        self._come += others
        return [answers[slot] for slot, _ in calls]

    def _hand_out(self, calls: Sequence[_Call]) -> None:
        for worker in range(len(self._workers)):
            self._send(worker, [call for call in calls if call[0] % len(self._workers) == worker])

    def _send(self, worker: int, calls: Sequence[_Call]) -> None:
        if not calls:
            return
        if not self._owed[worker]:
            self._since_s[worker] = time.monotonic()
        self._owed[worker] += calls
        with contextlib.suppress(OSError):  # whoever looks for its answers finds out
            self._workers[worker][1].send(list(calls))

    def _look(self) -> None:
        """Take the answers that are there. A worker that fails costs one slot its episode."""
        for worker in range(len(self._workers)):
            while (owed := self._owed[worker]) and (answer := self._receive(worker)) is not _NOTHING:
                (slot, _), *rest = owed
                self._come.append((slot, answer))
                self._owed[worker] = rest
                if isinstance(answer, _WorkerLost):
                    self._replace(worker, lost=slot)
                    self._owed[worker] = []
                    self._send(worker, self._redo(rest))

    def _receive(self, worker: int) -> Any:
        """The next answer, if there is one. A process that is still starting (imports) gets time of its own: that is not the
        world's."""
        process, connection = self._workers[worker]
        try:
            while connection.poll(0):
                message = connection.recv()
                self._since_s[worker] = time.monotonic()
                if worker not in self._starting:
                    return message
                self._starting.discard(worker)
        except (EOFError, OSError):
            return _died(process)
        if not process.is_alive() and not connection.poll(0):
            return _died(process)
        if time.monotonic() > self._deadline_s(worker):
            return _WorkerLost(StopReason.WORLD_HANG, f"no answer within {self._timeout_s:g} s")
        return _NOTHING

    def _deadline_s(self, worker: int) -> float:
        return self._since_s[worker] + (max(_START_S, self._timeout_s) if worker in self._starting else self._timeout_s)

    def _sleep(self) -> None:
        """Until a worker says something, dies, or is late."""
        busy = [worker for worker, owed in enumerate(self._owed) if owed]
        left_s = min(self._deadline_s(worker) for worker in busy) - time.monotonic()
        connections = [self._workers[worker][1] for worker in busy]
        wait([*connections, *(self._workers[worker][0].sentinel for worker in busy)], max(0.0, left_s))

    def _replace(self, worker: int, lost: int) -> None:
        process, connection = self._workers[worker]
        process.kill()
        process.join()
        connection.close()
        self._workers[worker] = self._start()
        self._starting.add(worker)
        for slot in range(worker, len(self._slots), len(self._workers)):
            self._slots[slot].stale = slot != lost

    def _redo(self, queue: Sequence[_Call]) -> list[_Call]:
        """Calls the dead worker never answered, as calls that rebuild their world first."""
        redone: list[_Call] = []
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
        return as_observation(world.reset(argument))
    if kind == "step":
        return as_transition(world.step(argument))
    task, actions, action = argument
    world.reset(task)
    for past in actions:
        world.step(past)
    return as_transition(world.step(action))
