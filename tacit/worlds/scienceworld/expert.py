"""The simulator's gold paths: scripted solutions that know where everything is."""

from __future__ import annotations

from tacit.core.errors import TacitError
from tacit.core.simulator import Served
from tacit.core.types import Observation, Task
from tacit.worlds.scienceworld.world import ScienceWorld, Simulator, start_simulator

SERVED = Served(start_simulator, ScienceWorld)  # the simulator of this process, shared by worlds and experts
_KEPT: dict[tuple[str, int], tuple[str, ...]] = {}  # cached gold paths: computing one takes the simulator a whole episode


class GoldPath:
    """Plays the gold path of a task, whatever the world answers, then waits."""

    def __init__(self, task: Task) -> None:
        self._left = list(gold_path(str(task.data["task"]), int(task.data["variation"])))

    def act(self, observation: Observation) -> str:
        return self._left.pop(0) if self._left else "wait1"


def gold_path(task: str, variation: int) -> tuple[str, ...]:
    if (task, variation) not in _KEPT:
        with SERVED.lock:
            _KEPT[task, variation] = _request_gold_path(SERVED.start(), task, variation)
    return _KEPT[task, variation]


def _request_gold_path(simulator: Simulator, task: str, variation: int) -> tuple[str, ...]:
    slot = simulator.acquire()
    try:
        simulator.call(slot, "load", task, variation, "", True)
        path = tuple(simulator.call(slot, "getGoldActionSequence"))
    finally:
        simulator.release(slot)
    if not path or path[0].startswith("ERROR"):
        raise TacitError(f"ScienceWorld has no gold path for variation {variation} of {task!r}.")
    return path
