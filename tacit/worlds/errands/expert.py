"""The oracle `Resident` knows where everything is; `Stranger` opens doors in random order unless it gets a hint."""

from __future__ import annotations

from random import Random

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.worlds.errands.world import DOORS, door_of, parse_observation


class Resident(ByReading):
    """Opens the right door, then takes the wanted thing."""

    def __init__(self, task: Task) -> None:
        self._thing = str(task.data["thing"])
        self._door = door_of(self._thing, int(task.data["town"]))

    def act(self, observation: Observation) -> str:
        return f"take {self._thing}" if self._thing in parse_observation(observation.text)[1] else f"open {self._door}"


class Stranger:
    """Opens each door once in random order; with a `hint` on the wanted thing (`mug behind red`), that door first. It wins by
    chance without a hint, and always with a true one."""

    def __init__(self, task: Task, hint: str = "") -> None:
        self._thing = str(task.data["thing"])
        doors = list(DOORS)
        Random(f"stranger/{task.id}/{task.seed}").shuffle(doors)
        thing, _, door = hint.partition(" behind ")
        hinted = [door] if thing == self._thing and door in DOORS else []
        self._left = [*hinted, *(d for d in doors if d not in hinted)]

    def act(self, observation: Observation) -> str:
        if self._thing in parse_observation(observation.text)[1]:
            return f"take {self._thing}"
        return f"open {self._left.pop(0)}" if self._left else f"open {DOORS[0]}"
