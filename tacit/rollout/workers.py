"""Slow worlds in worker processes, of this machine or of a cluster.

Slots are dealt to workers round-robin, so a step of all slots keeps every worker busy. A worker that hangs or dies is
replaced, and its *other* slots are brought back to where they were by replaying their actions: worlds are deterministic.
No worker is handed more than a few calls that it has not answered; the others wait here.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.platform import OWN, import_path, join_cluster
from tacit.core.types import Observation, StopReason, Task, Transition
from tacit.core.world import World
from tacit.rollout.worlds import NOTHING, READY, Call, SlotWorlds, SlowWorld, Worker, WorkerExited, WorkerLauncher, WorldFailure

# Workers as processes of this machine.

# Spawned, not forked: torch's threads do not survive a fork.
_SPAWN = multiprocessing.get_context("spawn")


class ProcessLauncher:
    def start(self, make: Callable[[], World]) -> ProcessWorker:
        return ProcessWorker(make)

    def wait(self, workers: Sequence[ProcessWorker], limit_s: float) -> None:
        connection.wait([thing for worker in workers for thing in (worker.line, worker.sentinel)], limit_s)


class ProcessWorker:
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

    def _ended(self) -> WorkerExited:
        self._process.join(1)
        return WorkerExited(f"its process died (exit code {self._process.exitcode})")


def _serve(line: Connection, make: Callable[[], World]) -> None:
    # Ctrl-C reaches every process of a terminal, and means the one that waits for these: it closes their line. A handler that
    # does nothing, and not SIG_IGN, which programs that a world starts would inherit.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    stage = SlotWorlds(make)
    line.send(READY)
    while True:
        try:
            call = line.recv()
        except (EOFError, OSError):
            stage.close()
            return
        line.send(stage.call(*call))


_START_S, _LEAVE_S = 120.0, 2.0
"""how long a process may take to start and to close its worlds"""

MAX_IN_FLIGHT = 8
"""calls a worker is handed before it has answered: enough to be busy while nobody looks, too few to fill what lies between"""

MAX_FAILED_STARTS = 3
"""processes that may end while they start, in a row, before it costs an episode: a machine may be gone and still be chosen"""


@dataclass
class _Slot:
    """What it takes to rebuild a slot's world elsewhere."""

    task: Task
    actions: list[str] = field(default_factory=list)
    stale: bool = False
    """the worker that held it is gone; replay before the next step"""


class _WorkerLost(WorldFailure):
    """The whole process is gone or stuck, not just one world."""


class WorkerPool:
    def __init__(
        self,
        make: Callable[[], World],
        processes: int = 4,
        timeout_s: float = 120.0,
        asynchronous: bool = False,
        where: WorkerLauncher[Any] | None = None,
    ) -> None:
        """`asynchronous`: answers are taken when they are there (see `ThinkingWorlds`), which pays where worlds are slow.
        `where`: None is this machine."""
        if processes < 1:
            raise ValueError(f"a pool of workers needs at least one process, got {processes}")
        self._make, self._timeout_s, self.asynchronous = make, timeout_s, asynchronous
        self._where: WorkerLauncher[Any] = where or ProcessLauncher()
        self._workers: list[Worker] = [self._where.start(make) for _ in range(processes)]
        self._starting = set(range(processes))
        self._slots: list[_Slot] = []
        self._owed: list[list[Call]] = [[] for _ in self._workers]
        """calls each worker has not answered yet, in order"""
        self._handed = [0 for _ in self._workers]
        """how many of them it has been handed"""
        self._stillborn = [0 for _ in self._workers]
        """how often in a row its process ended before it had started"""
        self._since_s = [0.0 for _ in self._workers]
        """when each worker began with the first of them"""
        self._come: list[tuple[int, Any]] = []
        """answers that nobody has asked for yet"""

    @property
    def late(self) -> SlowWorld | None:
        """Whom one waits for longest at this moment, for whoever looks on from another thread."""
        now, slots = time.monotonic(), self._slots
        found = [
            SlowWorld(slots[owed[0][0]].task, now - self._since_s[worker], self._timeout_s)
            for worker, owed in enumerate(list(self._owed))
            if owed and worker not in self._starting and owed[0][0] < len(slots)
        ]
        return max(found, key=lambda late: late.seconds, default=None)

    def reset(self, tasks: Sequence[Task]) -> list[Observation | WorldFailure]:
        while any(self._owed):  # by episodes that were broken off
            self.ready(wait=True)
        self._slots, self._come = [_Slot(task) for task in tasks], []
        return self._ask([(slot, ("reset", task)) for slot, task in enumerate(tasks)])

    def step(self, actions: Sequence[tuple[int, str]]) -> list[Transition | WorldFailure]:
        return self._ask(self._steps(actions))

    def begin(self, actions: Sequence[tuple[int, str]]) -> None:
        self._hand_out(self._steps(actions))

    def ready(self, wait: bool) -> list[tuple[int, Transition | WorldFailure]]:
        self._look()
        while wait and not self._come and any(self._owed):
            self._sleep()
            self._look()
        come, self._come = self._come, []
        return come

    def close(self) -> None:
        for worker in self._workers:
            worker.leave()
        for worker in self._workers:
            worker.stop(_LEAVE_S)  # one that hangs is not waited for longer
        self._workers, self._owed = [], []

    def _steps(self, actions: Sequence[tuple[int, str]]) -> list[Call]:
        calls: list[Call] = []
        for slot, action in actions:
            record = self._slots[slot]
            calls.append((slot, ("replay", (record.task, list(record.actions), action)) if record.stale else ("step", action)))
            record.stale = False
            record.actions.append(action)
        return calls

    def _ask(self, calls: list[Call]) -> list[Any]:
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

    def _hand_out(self, calls: Sequence[Call]) -> None:
        for worker in range(len(self._workers)):
            self._send(worker, [call for call in calls if call[0] % len(self._workers) == worker])

    def _send(self, worker: int, calls: Sequence[Call]) -> None:
        if not calls:
            return
        if not self._owed[worker]:
            self._since_s[worker] = time.monotonic()
        self._owed[worker] += calls
        self._hand_on(worker)

    def _hand_on(self, worker: int) -> None:
        owed = self._owed[worker]
        while self._handed[worker] < min(MAX_IN_FLIGHT, len(owed)):
            self._workers[worker].send(owed[self._handed[worker]])
            self._handed[worker] += 1

    def _look(self) -> None:
        """Take the answers that are there. A worker that fails costs one slot its episode."""
        for worker in range(len(self._workers)):
            while (owed := self._owed[worker]) and (answer := self._receive(worker)) is not NOTHING:
                (slot, _), *rest = owed
                self._come.append((slot, answer))
                self._owed[worker] = rest
                self._handed[worker] -= 1
                if isinstance(answer, _WorkerLost):
                    self._leave_behind(worker, lost=slot)
                    self._owed[worker] = self._redo(rest)
                    self._renew(worker)
                else:
                    self._hand_on(worker)

    def _receive(self, worker: int) -> Any:
        """The next answer, if there is one. A process that is still starting (imports) gets time of its own: that is not the
        world's."""
        try:
            while (said := self._workers[worker].answer()) is not NOTHING:
                self._since_s[worker] = time.monotonic()
                if worker not in self._starting:
                    return said
                self._starting.discard(worker)
                self._stillborn[worker] = 0
        except WorkerExited as ended:
            if worker in self._starting and self._stillborn[worker] < MAX_FAILED_STARTS:
                self._stillborn[worker] += 1
                self._renew(worker)
                return NOTHING
            return _WorkerLost(StopReason.WORLD_ERROR, str(ended))
        if time.monotonic() > self._deadline_s(worker):
            return _WorkerLost(StopReason.WORLD_HANG, f"no answer within {self._timeout_s:g} s")
        return NOTHING

    def _deadline_s(self, worker: int) -> float:
        return self._since_s[worker] + (max(_START_S, self._timeout_s) if worker in self._starting else self._timeout_s)

    def _sleep(self) -> None:
        """Until a worker says something, dies, or is late."""
        busy = [worker for worker, owed in enumerate(self._owed) if owed]
        left_s = min(self._deadline_s(worker) for worker in busy) - time.monotonic()
        self._where.wait([self._workers[worker] for worker in busy], max(0.0, left_s))

    def _renew(self, worker: int) -> None:
        """Another in its place, which is handed what this one owes. It has no worlds: calls must rebuild theirs."""
        self._workers[worker].stop()
        self._workers[worker] = self._where.start(self._make)
        self._starting.add(worker)
        self._since_s[worker], self._handed[worker] = time.monotonic(), 0
        self._hand_on(worker)

    def _leave_behind(self, worker: int, lost: int) -> None:
        """The worlds of a worker that is gone."""
        for slot in range(worker, len(self._slots), len(self._workers)):
            self._slots[slot].stale = slot != lost

    def _redo(self, queue: Sequence[Call]) -> list[Call]:
        """Calls the dead worker never answered, as calls that rebuild their world first."""
        redone: list[Call] = []
        for slot, (kind, argument) in queue:
            record = self._slots[slot]
            record.stale = False
            if kind != "reset":
                argument = (record.task, record.actions[:-1], record.actions[-1])
                kind = "replay"
            redone.append((slot, (kind, argument)))
        return redone


# Workers as Ray actors, spread over the machines of a cluster: for worlds so slow or so many that one machine is not enough.
#
# An actor whose machine is gone has died as a process has: its pool starts another, wherever there is room.

SETTING = "--workers-at"


class RayLauncher:
    def __init__(self, address: str, workers: int) -> None:
        self._ray = join_cluster(address, SETTING, workers)
        own = address == OWN
        free = int(self._ray.available_resources().get("CPU", 0))
        if not own and free < workers:
            raise TacitError(
                f"workers = {workers}, but the Ray cluster at {address!r} has {free} CPU(s) free, and each worker needs one of "
                f"its own; use --workers {max(1, free)}, or a larger cluster."
            )
        self._remote = self._ray.remote(_WorldActor).options(
            num_cpus=0 if own else 1,  # a Ray of one's own is this machine, which the engine may have counted already
            max_restarts=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {"PYTHONPATH": import_path()}},
        )

    def start(self, make: Callable[[], World]) -> RayWorker:
        return RayWorker(self._ray, self._remote.remote(make))

    def wait(self, workers: Sequence[RayWorker], limit_s: float) -> None:
        self._ray.wait([worker.due[0] for worker in workers], timeout=limit_s)


class RayWorker:
    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.due = [actor.ready.remote()]
        """what it has not said yet, in order"""

    def send(self, call: Call) -> None:
        self.due.append(self._actor.call.remote(*call))

    def answer(self) -> Any:
        if not self._ray.wait(self.due[:1], timeout=0)[0]:
            return NOTHING
        try:
            return self._ray.get(self.due.pop(0))
        except self._ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines() or [""]
            raise WorkerExited(f"its Ray actor died: {type(error).__name__}: {lines[0]}") from error

    def leave(self) -> None:
        if self._ray.is_initialized():  # otherwise it went with its Ray
            self.due = [self._actor.close.remote()]

    def stop(self, grace_s: float = 0.0) -> None:
        if not self._ray.is_initialized():
            return
        if grace_s:
            self._ray.wait(self.due[:1], timeout=grace_s)
        self._ray.kill(self._actor)


class _WorldActor:
    def __init__(self, make: Callable[[], World]) -> None:
        self._stage = SlotWorlds(make)

    def ready(self) -> str:
        return READY

    def call(self, slot: int, what: tuple[str, Any]) -> Any:
        return self._stage.call(slot, what)

    def close(self) -> None:
        self._stage.close()
