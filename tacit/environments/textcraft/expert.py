"""A planner that knows the book: it gets everything raw that the goal takes, then crafts from the bottom up."""

from __future__ import annotations

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.environments.textcraft.commands import read
from tacit.environments.textcraft.planner import plan
from tacit.environments.textcraft.world import set_up


class Crafter(ByReading):
    """Plans anew from what is held, so it can be asked in the middle of anyone's episode."""

    def __init__(self, task: Task) -> None:
        self._book, self._goal, _ = set_up(task)

    def act(self, observation: Observation) -> str:
        return plan(self._book, self._goal, read(observation.text).held).commands[0]
