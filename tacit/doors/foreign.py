"""Somebody else's text world as one of ours. Its tasks are seeds: training and testing draw from ranges that never meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from tacit.core.errors import TacitError, unknown
from tacit.core.types import Observation, Task
from tacit.core.wording import Numbered
from tacit.core.world import Environment, World

SEEDS: Mapping[str, range] = {"train": range(1_000_000), "test": range(1_000_000, 2_000_000)}
"""split -> the seeds its tasks are drawn from"""


class PlainWording(Numbered):
    """The goal, what is seen, and a request: no words of any world's own."""

    def task(self, task: Task) -> str:
        return task.goal

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{observation.text}\n> {action}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        if admissible and observation.actions:
            return f"{observation.text}\nPossible: {'; '.join(observation.actions)}"
        return observation.text


def by_seed(name: str, goal: str) -> Callable[[str, int, int], Sequence[Task]]:
    """Tasks that differ in their seed alone."""

    def tasks(split: str, count: int, seed: int) -> list[Task]:
        if split not in SEEDS:
            raise unknown(f"split of world {name!r}", split, SEEDS)
        if not 0 <= count <= len(SEEDS[split]):
            raise TacitError(f"{count} tasks of {split!r} were asked for; there are seeds for {len(SEEDS[split])}.")
        drawn = Random(f"{name}/{split}/{seed}").sample(SEEDS[split], count)
        return [Task(name, f"{split}/{number}", name, split, seed, goal, {"seed": number}) for number in drawn]

    return tasks


def foreign_environment(
    name: str, summary: str, make: Callable[[], World], goal: str, max_steps: int, **more: Any
) -> Environment:
    """An Environment of a world whose tasks are seeds (`task.data["seed"]`). `more` are further fields of `Environment`."""
    fields: dict[str, Any] = {
        "tasks": by_seed(name, goal),
        "splits": tuple(SEEDS),
        "families": (name,),
        "wordings": {"full": PlainWording(), "terse": PlainWording()},
        "step_rewards": True,
    }
    return Environment(name=name, summary=summary, max_steps=max_steps, make=make, **{**fields, **more})


def graded(total: float) -> float:
    """A sum of rewards as a score: what lies outside [0, 1] is cut off."""
    return min(max(total, 0.0), 1.0)
