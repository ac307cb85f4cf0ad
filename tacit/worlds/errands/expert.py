"""Who lives here knows where everything is; a stranger opens one door after another."""

from __future__ import annotations

from random import Random

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.worlds.errands.world import DOORS, door_of, read


class Resident(ByReading):
    """Opens the right door, then takes what is wanted. Knows the map, which nobody else is told."""

    def __init__(self, task: Task) -> None:
        self._thing = str(task.data["thing"])
        self._door = door_of(self._thing, int(task.data["town"]))

    def act(self, observation: Observation) -> str:
        return f"take {self._thing}" if self._thing in read(observation.text)[1] else f"open {self._door}"


class Stranger:
    """Opens doors in an order of its own, each once; with a `hint` (`mug behind red`) about what is wanted, that door first.
    It has learned nothing: what it wins without a hint is chance, and with a true one everything."""

    def __init__(self, task: Task, hint: str = "") -> None:
        self._thing = str(task.data["thing"])
        doors = list(DOORS)
        Random(f"stranger/{task.id}/{task.seed}").shuffle(doors)
        thing, _, door = hint.partition(" behind ")
        told = [door] if thing == self._thing and door in DOORS else []
        self._left = [*told, *(d for d in doors if d not in told)]

    def act(self, observation: Observation) -> str:
        if self._thing in read(observation.text)[1]:
            return f"take {self._thing}"
        return f"open {self._left.pop(0)}" if self._left else f"open {DOORS[0]}"
