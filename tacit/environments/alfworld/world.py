"""The world: a `Household` behind `reset` and `step`."""

from __future__ import annotations

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.environments.alfworld.game import Game
from tacit.environments.alfworld.household import Household
from tacit.environments.alfworld.text import NOTHING_HAPPENS


class AlfWorld:
    """Plays one household game at a time: observations carry the engine's text and its admissible commands, sorted."""

    def __init__(self) -> None:
        self._household: Household | None = None

    @property
    def household(self) -> Household:
        """The game being played, with its whole state: for experts that may see it and for debugging."""
        if self._household is None:
            raise TacitError("this world has no game yet: call reset(task) first.")
        return self._household

    def reset(self, task: Task) -> Observation:
        if "game" not in task.data:
            raise TacitError(f"task {task.id!r} is not a household: its data has no 'game'.")
        self._household = household = Household(Game.from_data(task.data["game"]))
        return Observation(household.intro(), household.commands)

    def step(self, action: str) -> Transition:
        household = self.household
        feedback = household.answer(action)
        won = household.won
        return Transition(
            observation=Observation(feedback, household.commands),
            done=won,
            success=won,
            score=float(won),
            effective=feedback != NOTHING_HAPPENS,
        )

    def close(self) -> None:
        self._household = None
