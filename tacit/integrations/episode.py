"""Shared code of the integrations: an episode of one of our worlds, and a seeded environment as a world."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Literal

from tacit.core.errors import TacitError, unknown
from tacit.core.trust import trust_names
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Environment, Numbered, World, as_observation, as_transition
from tacit.worlds import get_environment

Pays = Literal["", "success", "score", "steps"]
"""reward: `success` pays 1 at the end of a success, `score` the score at the end, `steps` the world's step rewards; empty is
`steps` if the world has step rewards, else `success`"""
DEFAULT_TASKS = 1000
"""number of tasks in splits of unlimited size"""


class Episode:
    """Plays one task after another. A task number denotes the same task on every machine."""

    def __init__(
        self,
        world: str | Environment,
        split: str = "train",
        tasks: int = 0,
        families: Sequence[str] = (),
        max_steps: int = 0,
        pays: Pays = "",
    ) -> None:
        if isinstance(world, str):
            trust_names(world)
        self.environment = get_environment(world) if isinstance(world, str) else world
        if split not in self.environment.splits:
            raise unknown(f"split of world {self.environment.name!r}", split, self.environment.splits)
        count = tasks or self.environment.panel_size(split, DEFAULT_TASKS)
        self.tasks = tuple(self.environment.tasks_of(split, count, 0, families))
        if not self.tasks:
            raise TacitError(f"split {split!r} of world {self.environment.name!r} has no such tasks.")
        self.max_steps = max_steps or self.environment.max_steps
        self.pays = pays or ("steps" if self.environment.step_rewards else "success")
        if self.pays == "steps" and not self.environment.step_rewards:
            raise TacitError(f"world {self.environment.name!r} has no step rewards: choose pays='success' or 'score'.")
        self.task: Task | None = None
        self.steps = 0
        self._world: World | None = None
        self._over = True

    def clone(self) -> Episode:
        """Another Episode with the same task list. Generating it again would take seconds in some worlds."""
        other = copy.copy(self)
        other.task, other.steps, other._world, other._over = None, 0, None, True
        return other

    def begin(self, number: int) -> Observation:
        """Start a task; numbers wrap around."""
        self._world = self._world or self.environment.make()
        self.task = self.tasks[number % len(self.tasks)]
        self.steps, self._over = 0, False
        return as_observation(self._world.reset(self.task))

    def act(self, action: str) -> tuple[Transition, float, bool]:
        """(transition, reward, whether the step limit ended the episode)"""
        if self._over or self._world is None:
            raise TacitError("the episode has ended or has not started: call reset first.")
        transition = as_transition(self._world.step(str(action)))
        self.steps += 1
        truncated = self.steps >= self.max_steps and not transition.done
        self._over = transition.done or truncated
        transition = replace(transition, score=1.0 if transition.success else transition.score)
        at_the_end = {"success": float(transition.success), "score": transition.score}
        reward = transition.reward if self.pays == "steps" else at_the_end[self.pays] if self._over else 0.0
        return transition, reward, truncated

    def describe(self, turn: Transition | None, observation: Observation) -> dict[str, Any]:
        """The `info` of a step: task, valid actions, score."""
        assert self.task is not None
        info = {
            "goal": self.task.goal,
            "task": self.task.id,
            "family": self.task.family,
            "admissible_actions": list(observation.actions),
            "score": turn.score if turn else 0.0,
            "success": bool(turn and turn.success),
            "effective": turn is None or turn.effective,
        }
        return {**info, "label": turn.label} if turn and turn.label else info

    def close(self) -> None:
        world, self._world, self._over = self._world, None, True
        if world is not None:
            world.close()


# Another library's text environment as a world. Its tasks are seeds.

SEEDS: Mapping[str, range] = {"train": range(1_000_000), "test": range(1_000_000, 2_000_000)}
"""split -> seeds of its tasks; the ranges are disjoint"""


class PlainWording(Numbered):
    def task(self, task: Task) -> str:
        return task.goal

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{observation.text}\n> {action}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        if admissible and observation.actions:
            return f"{observation.text}\nPossible: {'; '.join(observation.actions)}"
        return observation.text


def make_environment(name: str, summary: str, make: Callable[[], World], goal: str, max_steps: int, **more: Any) -> Environment:
    """The Environment of a world whose tasks differ only in their seed (`task.data["seed"]`). `more`: further fields of
    `Environment`."""

    def tasks(split: str, count: int, seed: int) -> list[Task]:
        if split not in SEEDS:
            raise unknown(f"split of world {name!r}", split, SEEDS)
        if not 0 <= count <= len(SEEDS[split]):
            raise TacitError(f"{count} tasks of {split!r} were requested, but it has only {len(SEEDS[split])} seeds.")
        drawn = Random(f"{name}/{split}/{seed}").sample(SEEDS[split], count)
        return [Task(name, f"{split}/{number}", name, split, seed, goal, {"seed": number}) for number in drawn]

    fields: dict[str, Any] = {
        "tasks": tasks,
        "splits": tuple(SEEDS),
        "families": (name,),
        "wordings": {"full": PlainWording(), "terse": PlainWording()},
        "step_rewards": True,
    }
    return Environment(name=name, summary=summary, max_steps=max_steps, make=make, **{**fields, **more})


POSSIBLE = ("admissible_actions", "admissible_commands", "legal_actions", "valid_actions", "available_actions")


def make_observation(text: Any, info: Mapping[str, Any]) -> Observation:
    """An observation of another library's environment; `info` may list the possible actions."""
    possible = next((info[key] for key in POSSIBLE if info.get(key)), ())
    return Observation(str(text), tuple(map(str, possible)))


def make_transition(
    observation: Observation, done: bool, won: bool, score: float, reward: float, info: Mapping[str, Any], label: str
) -> Transition:
    """A transition of another library's environment. A win has score 1; other scores are clipped to [0, 1]."""
    effective = bool(info.get("effective", True))
    score = 1.0 if won else clip_score(score)
    return Transition(observation, done=done, success=won, score=score, reward=reward, effective=effective, label=label)


def clip_score(total: float) -> float:
    """A sum of rewards as a score in [0, 1]."""
    return min(max(total, 0.0), 1.0)
