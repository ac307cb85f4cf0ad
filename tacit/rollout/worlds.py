"""Many worlds at once, and none of them able to take the run down.

A world that raises, or that does not answer in time, ends its own episode and no other; so does an expert that plays there.
Fast worlds run in place; slow ones in worker processes. Both pools answer in the same words.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from tacit.core.errors import TacitError, told_of
from tacit.core.progress import duration, number_of
from tacit.core.simulator import START_S, close_simulator, start_simulator
from tacit.core.types import Observation, StopReason, Task, Trajectory, Transition
from tacit.core.world import Adviser, Expert, World, as_observation, as_transition

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorldFailure:
    """What a world that broke leaves behind."""

    reason: StopReason
    detail: str


@dataclass(frozen=True, slots=True)
class SlowWorld:
    """A world that is being waited for."""

    task: Task
    seconds: float
    limit_s: float

    def __str__(self) -> str:
        return (
            f"world {self.task.world!r} has not answered for {duration(self.seconds)} in task {self.task.id!r}; its episode "
            f"ends at {duration(self.limit_s)} (--world-timeout-s)"
        )


class WorldPool(Protocol):
    """Slots 0…n−1, each one live episode."""

    def reset(self, tasks: Sequence[Task]) -> list[Observation | WorldFailure]:
        """Slot i starts task i."""
        ...

    def step(self, actions: Sequence[tuple[int, str]]) -> list[Transition | WorldFailure]:
        """(slot, action) pairs, answered in order."""
        ...

    def close(self) -> None: ...


class AsyncSteps(Protocol):
    """Two halves of a step: worlds may think while something else goes on."""

    def begin(self, actions: Sequence[tuple[int, str]]) -> None:
        """(slot, action) pairs, to be answered later."""
        ...

    def ready(self, wait: bool) -> list[tuple[int, Transition | WorldFailure]]:
        """(slot, answer) of those that have answered; with `wait`, of one at least where any are to come."""
        ...


@runtime_checkable
class AsyncWorldPool(WorldPool, AsyncSteps, Protocol):
    @property
    def asynchronous(self) -> bool:
        """Whether each answer is taken when it is there, instead of all of a round together. Slow worlds then hold up nobody;
        but which episodes share a batch depends on the clock, and a run cannot be repeated bit for bit."""
        ...


def open_steps(worlds: WorldPool) -> AsyncSteps:
    """As they come where the pool is set to that; else those of a round are awaited together."""
    return worlds if isinstance(worlds, AsyncWorldPool) and worlds.asynchronous else _SyncSteps(worlds)


class _SyncSteps:
    def __init__(self, worlds: WorldPool) -> None:
        self._worlds = worlds
        self._answers: list[tuple[int, Transition | WorldFailure]] = []

    def begin(self, actions: Sequence[tuple[int, str]]) -> None:
        answers = self._worlds.step(actions) if actions else []
        self._answers = [(slot, answer) for (slot, _), answer in zip(actions, answers, strict=True)]

    def ready(self, wait: bool) -> list[tuple[int, Transition | WorldFailure]]:
        return self._answers


class InProcessPool:
    """Worlds in this process, one after another. A hang is cut off by the alarm signal where the platform has one."""

    def __init__(self, make: Callable[[], World], timeout_s: float = 30.0) -> None:
        self._make, self._timeout_s = make, timeout_s
        self._worlds: list[World | None] = []
        self._tasks: list[Task] = []
        self._asked: tuple[Task, float] | None = None
        """whose world is being asked something, and since when"""

    @property
    def late(self) -> SlowWorld | None:
        """What is being waited for at this moment, for whoever looks on from another thread."""
        return None if (asked := self._asked) is None else SlowWorld(asked[0], time.monotonic() - asked[1], self._timeout_s)

    def reset(self, tasks: Sequence[Task]) -> list[Observation | WorldFailure]:
        answers: list[Observation | WorldFailure] = []
        self._tasks = list(tasks)
        # Starting a simulator is no world's answer: it has time of its own.
        with contextlib.suppress(AlarmTimeout), raise_after(max(START_S, self._timeout_s)):
            start_simulator(self._make)
        for slot, task in enumerate(tasks):
            # A world is reused from episode to episode; one that broke is made anew.
            answers.append(self._guard(lambda slot=slot, task=task: as_observation(self._world(slot).reset(task)), slot))
        return answers

    def step(self, actions: Sequence[tuple[int, str]]) -> list[Transition | WorldFailure]:
        return [self._guard(lambda s=slot, a=action: as_transition(self._world(s).step(a)), slot) for slot, action in actions]

    def close(self) -> None:
        for slot in range(len(self._worlds)):
            self._drop(slot)
        self._worlds = []
        with contextlib.suppress(AlarmTimeout), raise_after(self._timeout_s):
            close_simulator(self._make)

    def _world(self, slot: int) -> World:
        while len(self._worlds) <= slot:
            self._worlds.append(None)
        world = self._worlds[slot]
        if world is None:
            world = self._worlds[slot] = self._make()
        return world

    def _guard(self, call: Callable, slot: int):
        self._asked = (self._tasks[slot], time.monotonic())
        try:
            with raise_after(self._timeout_s):
                return call()
        except AlarmTimeout:
            broken = WorldFailure(StopReason.WORLD_HANG, f"no answer within {self._timeout_s:g} s")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() in a world is the end of that world
            broken = WorldFailure(StopReason.WORLD_ERROR, told_of(error))
        finally:
            self._asked = None
        self._drop(slot)
        return broken

    def _drop(self, slot: int) -> None:
        """A world that broke may be in any state: it is closed as far as it can be, and the next episode gets a new one."""
        world, self._worlds[slot] = self._worlds[slot], None
        if world is not None:
            with contextlib.suppress(Exception, SystemExit, AlarmTimeout), raise_after(self._timeout_s):
                world.close()


class TimedWorld:
    """A world in this process that raises TimeoutError where it does not answer in time, for whoever plays without a pool."""

    def __init__(self, make: Callable[[], World], timeout_s: float) -> None:
        start_simulator(make)
        self._world, self._timeout_s = make(), timeout_s
        self.close = self._world.close

    def reset(self, task: Task) -> Observation:
        return call_with_timeout(self._timeout_s, lambda: self._world.reset(task))

    def step(self, action: str) -> Transition:
        return call_with_timeout(self._timeout_s, lambda: self._world.step(action))


class TimedExpert:
    """An expert that raises TimeoutError where it does not say in time what it would do; an `Adviser` where it is one."""

    def __init__(self, make: Callable[[Task], Expert], timeout_s: float, task: Task) -> None:
        self._expert, self._timeout_s = call_with_timeout(timeout_s, lambda: make(task), "of the expert"), timeout_s
        if isinstance(self._expert, Adviser):
            self.happened = self._happened

    def act(self, observation: Observation) -> str:
        return call_with_timeout(self._timeout_s, lambda: self._expert.act(observation), "of the expert")

    def _happened(self, action: str) -> None:
        call_with_timeout(self._timeout_s, lambda: cast(Adviser, self._expert).happened(action), "of the expert")


def call_with_timeout(seconds: float, call: Callable[[], T], whose: str = "") -> T:
    """`call()`, or TimeoutError."""
    try:
        with raise_after(seconds):
            return call()
    except AlarmTimeout:
        raise TimeoutError(f"no answer{' ' + whose if whose else ''} within {seconds:g} s") from None


class AlarmTimeout(BaseException):
    """The alarm rang. Not an Exception: a world that catches those would sleep through it."""


@contextlib.contextmanager
def raise_after(seconds: float) -> Iterator[None]:
    """Raise Hang in this block after `seconds`. Does nothing off the main thread or where there is no SIGALRM."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(signum, frame):
        raise AlarmTimeout

    previous = signal.signal(signal.SIGALRM, ring)
    outer_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.monotonic()
    try:
        yield
    finally:
        # Whoever else had set the alarm gets what is left of it.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if outer_s:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, outer_s - (time.monotonic() - began)))


# What a worker does, wherever it lives: it plays the worlds of some slots, one call after another.

Call = tuple[int, tuple[str, Any]]
"""(slot, (what to do, with what))"""

READY = "ready"
"""what a worker says first, once it has started"""

NOTHING = object()
"""no answer yet"""


class WorkerExited(Exception):
    """A worker is gone; its words say how."""


class Worker(Protocol):
    """A process that was started somewhere, and answers calls in order; before them it says READY."""

    def send(self, call: Call) -> None:
        """Nothing comes of it where the worker is gone: whoever looks for the answer finds out."""
        ...

    def answer(self) -> Any:
        """The next thing it says; NOTHING where it has not said it yet. Raises `Ended` where it never will."""
        ...

    def leave(self) -> None:
        """Have it close its worlds and go."""
        ...

    def stop(self, grace_s: float = 0.0) -> None:
        """End it at once, or when it has not left after so many seconds."""
        ...


W = TypeVar("W", bound=Worker)


class WorkerLauncher(Protocol[W]):
    """Where workers are started."""

    def start(self, make: Callable[[], World]) -> W: ...

    def wait(self, workers: Sequence[W], limit_s: float) -> None:
        """Until one of them says something or is gone, or the limit is reached."""
        ...


class SlotWorlds:
    """A world per slot, in the worker's own process."""

    def __init__(self, make: Callable[[], World]) -> None:
        self._make = make
        self._worlds: dict[int, World] = {}
        start_simulator(make)

    def call(self, slot: int, what: tuple[str, Any]) -> Any:
        try:
            return self._play(slot, *what)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            with contextlib.suppress(Exception, SystemExit):
                self._worlds.pop(slot).close()
            return WorldFailure(StopReason.WORLD_ERROR, told_of(error))

    def close(self) -> None:
        for world in self._worlds.values():
            with contextlib.suppress(Exception, SystemExit):
                world.close()
        close_simulator(self._make)

    def _play(self, slot: int, kind: str, argument: Any) -> Any:
        if slot not in self._worlds:
            self._worlds[slot] = self._make()
        world = self._worlds[slot]
        if kind == "reset":
            return as_observation(world.reset(argument))
        if kind == "step":
            return as_transition(world.step(argument))
        task, actions, action = argument
        world.reset(task)
        for past in actions:
            world.step(past)
        return as_transition(world.step(action))


# Episodes that ended because their world broke, in words.


def describe_crashes(played: Sequence[Trajectory]) -> str:
    """`3 of 8 episodes ended because the world broke; the first: RuntimeError: …, in task 'maze/7' of world 'maze'`; empty
    where none did."""
    crashed = sum(t.stop.crashed for t in played)
    if not crashed:
        return ""
    all_of = number_of(len(played), "episode")
    share = (
        f"{crashed} of {all_of}" if crashed < len(played) else f"each of the {all_of}" if crashed > 1 else "the only episode"
    )
    return f"{share} ended because the world broke; the first: {first_crash(played)}"


def first_crash(played: Sequence[Trajectory]) -> str:
    """Why, and in which task; empty where none broke."""
    return next((f"{t.detail}, in task {t.task.id!r} of world {t.task.world!r}" for t in played if t.stop.crashed), "")


def refuse_if_all_crashed(played: Sequence[Trajectory], remedy: str) -> None:
    """Not one episode says anything about the policy: there is nothing to measure or to learn from."""
    if played and all(t.stop.crashed for t in played):
        raise TacitError(f"{describe_crashes(played)}. {remedy}")
