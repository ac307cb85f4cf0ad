"""A solver: always a move of a shortest solution."""

from __future__ import annotations

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.environments.sokoban.solver import best_moves
from tacit.environments.sokoban.world import read_position


class Solver(ByReading):
    """Acts on the observation alone, so it can be asked in the middle of anyone's episode. Of several best moves it takes the
    first in the order up, down, left, right. In a deadlock, where nothing helps, it does what is possible."""

    def __init__(self, task: Task | None = None) -> None:
        pass

    def act(self, observation: Observation) -> str:
        best = best_moves(*read_position(observation.text))
        return best[0] if best else (observation.actions or ("up",))[0]
