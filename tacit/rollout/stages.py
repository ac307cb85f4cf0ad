"""What a worker does, wherever it lives: it plays the worlds of some slots, one call after another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from tacit.core.answers import as_observation, as_transition
from tacit.core.errors import told_of
from tacit.core.simulator import close_simulator, start_simulator
from tacit.core.types import StopReason
from tacit.core.world import World
from tacit.rollout.worlds import Broken

Call = tuple[int, tuple[str, Any]]
"""(slot, (what to do, with what))"""

READY = "ready"
"""what a worker says first, once it has started"""

NOTHING = object()
"""no answer yet"""


class Ended(Exception):
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


class Workplace(Protocol[W]):
    """Where workers are started."""

    def start(self, make: Callable[[], World]) -> W: ...

    def wait(self, workers: Sequence[W], limit_s: float) -> None:
        """Until one of them says something or is gone, or the limit is reached."""
        ...


class Stage:
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
            return Broken(StopReason.WORLD_ERROR, told_of(error))

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
