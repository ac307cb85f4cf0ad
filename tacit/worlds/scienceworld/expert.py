"""The simulator's own gold paths: what its makers would do. They know where things are, and do not look for them."""

from __future__ import annotations

from tacit.core.errors import TacitError
from tacit.core.simulator import Served
from tacit.core.types import Observation, Task
from tacit.worlds.scienceworld.world import Laboratory, ScienceWorld, open_laboratory

SERVED = Served(open_laboratory, ScienceWorld)
"""the simulator of this process: worlds and experts share it"""
_KEPT: dict[tuple[str, int], tuple[str, ...]] = {}
"""paths that were asked for; finding one takes the simulator a whole episode"""


class Gold:
    """Plays the gold path of a task, whatever the world answers; when it is over, waits."""

    def __init__(self, task: Task) -> None:
        self._left = list(gold_path(str(task.data["task"]), int(task.data["variation"])))

    def act(self, observation: Observation) -> str:
        return self._left.pop(0) if self._left else "wait1"


def gold_path(task: str, variation: int) -> tuple[str, ...]:
    if (task, variation) not in _KEPT:
        with SERVED.lock:
            _KEPT[task, variation] = _ask(SERVED.start(), task, variation)
    return _KEPT[task, variation]


def _ask(laboratory: Laboratory, task: str, variation: int) -> tuple[str, ...]:
    seat = laboratory.lend()
    try:
        laboratory.ask(seat, "load", task, variation, "", True)
        path = tuple(laboratory.ask(seat, "getGoldActionSequence"))
    finally:
        laboratory.take_back(seat)
    if not path or path[0].startswith("ERROR"):
        raise TacitError(f"ScienceWorld has no gold path for variation {variation} of {task!r}.")
    return path
