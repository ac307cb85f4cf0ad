"""World pools: many worlds at once, isolated from the run's failures and from each other's.

If a world raises or does not answer in time, only its own episode ends. Fast worlds run in this process, slow ones in worker
processes (workers.py). Both pools return the same values.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from tacit.core.errors import TacitError, describe_error
from tacit.core.progress import format_duration, pluralize
from tacit.core.simulator import START_S, close_simulator, start_simulator
from tacit.core.types import Observation, StopReason, Task, Trajectory, Transition
from tacit.core.world import Adviser, Expert, World, as_observation, as_transition

T = TypeVar("T")
SHORTER_PROMPTS = "use a model with a longer context, lower --max-tokens, or shorten the world's texts"


@dataclass(frozen=True, slots=True)
class WorldFailure:
    """Why a world failed: its episode ends with this stop reason and detail."""

    reason: StopReason
    detail: str


@dataclass(frozen=True, slots=True)
class SlowWorld:
    """A world that has not answered yet, for `seconds` so far."""

    task: Task
    seconds: float
    limit_s: float

    def __str__(self) -> str:
        return (
            f"world {self.task.world!r} has not answered for {format_duration(self.seconds)} in task {self.task.id!r}; its "
            f"episode ends at {format_duration(self.limit_s)} (--world-timeout-s)"
        )


class WorldPool(Protocol):
    """Slots 0…n−1, each one live episode: `reset` starts task i in slot i. `submit` starts the steps of (slot, action) pairs,
    and `collect` returns their results."""

    @property
    def slowest_call(self) -> SlowWorld | None:
        """the longest pending call, None if none is pending; may be read from another thread"""
        return None

    def reset(self, tasks: Sequence[Task]) -> list[Observation | WorldFailure]: ...
    def submit(self, actions: Sequence[tuple[int, str]]) -> None: ...

    def collect(self, limit_s: float | None = None) -> dict[int, Transition | WorldFailure]:
        """slot -> result of each submitted step, or of those that have ended after `limit_s`; later calls return the others."""

    def step(self, actions: Sequence[tuple[int, str]]) -> list[Transition | WorldFailure]:
        """Submit, wait for all, and return their results in order."""
        self.submit(actions)
        results = self.collect()
        return [results[slot] for slot, _ in actions]

    def close(self) -> None: ...


class SlotWorlds:
    """One world per slot, reused for later episodes; a world that fails is closed and replaced. With a timeout, SIGALRM
    interrupts worlds that hang, on platforms that have it."""

    def __init__(self, make: Callable[[], World], timeout_s: float | None = None) -> None:
        self._make, self.limit_s = make, timeout_s
        self._worlds: dict[int, World] = {}

    def start(self) -> None:
        with contextlib.suppress(AlarmTimeout), raise_after(self.limit_s and max(START_S, self.limit_s)):
            start_simulator(self._make)  # which may take longer than a world

    def call(self, slot: int, what: tuple[str, Any]) -> Any:
        """`reset` with a task, `step` with an action, or `replay` with (task, past actions, action)."""
        try:
            with raise_after(self.limit_s):
                kind, argument = what
                if slot not in self._worlds:
                    self._worlds[slot] = self._make()
                world = self._worlds[slot]
                if kind == "reset":
                    return as_observation(world.reset(argument))
                if kind == "replay":
                    task, past_actions, argument = argument
                    world.reset(task)
                    for past in past_actions:
                        world.step(past)
                return as_transition(world.step(argument))
        except AlarmTimeout:
            failure = WorldFailure(StopReason.WORLD_HANG, f"no answer within {self.limit_s:g} s")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # including sys.exit() in a world
            failure = WorldFailure(StopReason.WORLD_ERROR, describe_error(error))
        self._drop(slot)
        return failure

    def answer(self, slot: int, what: tuple[str, Any]) -> tuple[int, Any]:
        """(slot, result), as a worker sends it."""
        return slot, self.call(slot, what)

    def close(self) -> None:
        for slot in list(self._worlds):
            self._drop(slot)
        with contextlib.suppress(AlarmTimeout), raise_after(self.limit_s):
            close_simulator(self._make)

    def _drop(self, slot: int) -> None:
        world = self._worlds.pop(slot, None)
        if world is not None:
            with contextlib.suppress(Exception, SystemExit, AlarmTimeout), raise_after(self.limit_s):
                world.close()


class InProcessPool(SlotWorlds, WorldPool):
    """Worlds in this process, stepped one after another; `submit` waits for the results."""

    def __init__(self, make: Callable[[], World], timeout_s: float = 30.0) -> None:
        super().__init__(make, timeout_s)
        self._timeout_s, self._tasks = timeout_s, list[Task]()
        self._results: dict[int, Transition | WorldFailure] = {}
        self._running: tuple[Task, float] | None = None  # (task of the world being called, start time)

    @property
    def slowest_call(self) -> SlowWorld | None:
        running = self._running
        return None if running is None else SlowWorld(running[0], time.monotonic() - running[1], self._timeout_s)

    def reset(self, tasks: Sequence[Task]) -> list[Observation | WorldFailure]:
        self._tasks, self._results = list(tasks), {}
        self.start()
        return [self.call(slot, ("reset", task)) for slot, task in enumerate(tasks)]

    def submit(self, actions: Sequence[tuple[int, str]]) -> None:
        for slot, action in actions:
            self._results[slot] = self.call(slot, ("step", action))

    def collect(self, limit_s: float | None = None) -> dict[int, Transition | WorldFailure]:
        results, self._results = self._results, {}
        return results

    def call(self, slot: int, what: tuple[str, Any]) -> Any:
        self._running = (self._tasks[slot], time.monotonic())
        try:
            return super().call(slot, what)
        finally:
            self._running = None


class TimedWorld:
    """A world in this process that raises TimeoutError if it does not answer in time; for play without a pool."""

    def __init__(self, make: Callable[[], World], timeout_s: float) -> None:
        start_simulator(make)
        self._world, self._timeout_s = make(), timeout_s
        self.close = self._world.close

    def reset(self, task: Task) -> Observation:
        return call_with_timeout(self._timeout_s, lambda: self._world.reset(task))

    def step(self, action: str) -> Transition:
        return call_with_timeout(self._timeout_s, lambda: self._world.step(action))


class TimedExpert:
    """An expert that raises TimeoutError if it does not answer in time. An `Adviser` if the wrapped one is."""

    def __init__(self, make: Callable[[Task], Expert], timeout_s: float, task: Task) -> None:
        self._expert, self._timeout_s = call_with_timeout(timeout_s, lambda: make(task), "of the expert"), timeout_s
        if isinstance(self._expert, Adviser):
            self.happened = self._happened

    def act(self, observation: Observation) -> str:
        return call_with_timeout(self._timeout_s, lambda: self._expert.act(observation), "of the expert")

    def _happened(self, action: str) -> None:
        call_with_timeout(self._timeout_s, lambda: cast(Adviser, self._expert).happened(action), "of the expert")


def call_with_timeout(seconds: float, call: Callable[[], T], owner: str = "") -> T:
    """`call()`; TimeoutError if it takes longer."""
    try:
        with raise_after(seconds):
            return call()
    except AlarmTimeout:
        raise TimeoutError(f"no answer{' ' + owner if owner else ''} within {seconds:g} s") from None


class AlarmTimeout(BaseException):
    """Raised by SIGALRM. Not an Exception, so that worlds with `except Exception` do not swallow it."""


@contextlib.contextmanager
def raise_after(seconds: float | None) -> Iterator[None]:
    """Raise AlarmTimeout in this context after `seconds`. No effect off the main thread, without SIGALRM or with None."""
    if seconds is None or not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
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
        # An outer alarm keeps its remaining time.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if outer_s:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, outer_s - (time.monotonic() - began)))


def describe_crashes(played: Sequence[Trajectory]) -> str:
    """`3 of 8 episodes ended because the world broke; the first: RuntimeError: …, in task 'maze/7' of world 'maze'`; empty
    if no episode crashed."""
    crashed, all_of = sum(t.stop.crashed for t in played), pluralize(len(played), "episode")
    if not crashed:
        return ""
    whole = f"each of the {all_of}" if crashed > 1 else "the only episode"
    share = f"{crashed} of {all_of}" if crashed < len(played) else whole
    return f"{share} ended because the world broke; the first: {first_crash(played)}"


def describe_overlong(played: Sequence[Trajectory]) -> str:
    """`4 of 4 episodes ended because the prompt does not fit the model's context (9040 prompt + 8 new tokens > 512): …`; empty
    if all prompts fit."""
    overlong = [t for t in played if t.stop is StopReason.PROMPT_TOO_LONG]
    if not overlong:
        return ""
    return (
        f"{len(overlong)} of {pluralize(len(played), 'episode')} ended because the prompt does not fit the model's context "
        f"({overlong[0].detail}): {SHORTER_PROMPTS}"
    )


def first_crash(played: Sequence[Trajectory]) -> str:
    """Error and task of the first crashed episode; empty if none crashed."""
    return next((f"{t.detail}, in task {t.task.id!r} of world {t.task.world!r}" for t in played if t.stop.crashed), "")


def refuse_if_all_crashed(played: Sequence[Trajectory], remedy: str) -> None:
    """Raise if every episode crashed. `remedy`: the end of the message."""
    if played and all(t.stop.crashed for t in played):
        raise TacitError(f"{describe_crashes(played)}. {remedy}")
