"""An audit set: prompts of played episodes by task and family, to examine a policy's hidden states."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.core.errors import TacitError, unknown
from tacit.core.method import Context
from tacit.core.protocols import Tokenizer
from tacit.core.seeds import derive
from tacit.core.types import Group, Observation, Task
from tacit.core.world import Environment, Expert
from tacit.evaluation.evaluate import RolloutSetup
from tacit.rollout.replay import play_episode, render_turns

MakeAgent = Callable[[Task, int], Expert]  # (task, member of its group) -> the agent that plays it
MIN_TASKS = 2  # tasks per family that are always played: one to train the probe, one to test it


@dataclass(frozen=True, eq=False)
class Audit:
    prompts: list[np.ndarray]  # tokens of each step, episode by episode
    task_N: np.ndarray
    episode_N: np.ndarray
    family_N: np.ndarray
    families: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.prompts)

    @classmethod
    def of(cls, world: Environment, steps: Sequence[tuple[np.ndarray, Task, int]]) -> Audit:
        """From (prompt tokens, task, episode number) of every step."""
        if not steps:
            raise TacitError(f"no episode of world {world.name!r} could be played, so there is nothing to calibrate on.")
        families = tuple(dict.fromkeys(task.family for _, task, _ in steps))
        numbers = {name: i for i, name in enumerate(dict.fromkeys(task.id for _, task, _ in steps))}
        return cls(
            [tokens for tokens, _, _ in steps],
            np.array([numbers[task.id] for _, task, _ in steps], np.int64),
            np.array([episode for _, _, episode in steps], np.int64),
            np.array([families.index(task.family) for _, task, _ in steps], np.int64),
            families,
        )


class NoisyAgent:
    """An agent that takes a share of its actions at random from the admissible ones."""

    def __init__(self, agent: Expert, noise: float, rng: random.Random) -> None:
        self._agent, self._noise, self._rng = agent, noise, rng

    def act(self, observation: Observation) -> str:
        action = self._agent.act(observation)
        own = self._rng.random() >= self._noise or not observation.actions
        return action if own else self._rng.choice(observation.actions)


def audit(
    world: Environment,
    tasks: Sequence[Task],
    members: int,
    context: Context,
    tokenizer: Tokenizer,
    agent: MakeAgent,
    room: int,
    max_steps: int,
    most: int | None = None,
    at_least: int = 0,
) -> Audit:
    """Play each task `members` times; keep every prompt that leaves `room` for a completion. Episodes that raise are dropped.

    After `most` steps no further task is played, except the first `at_least`.
    """
    steps: list[tuple[np.ndarray, Task, int]] = []
    episode = 0
    live = world.make()
    for number, task in enumerate(tasks):
        if most is not None and number >= at_least and len(steps) >= most:
            break
        for member in range(members):
            try:
                course = play_episode(live, task, agent(task, member), max_steps)
                turns = render_turns(context, task, course, tokenizer=tokenizer, room=room)
                read = [turn.tokens for turn in turns if turn.fits]
            except TacitError:
                raise
            except (Exception, SystemExit):  # a broken world ends its own episode, here as in a rollout
                live = world.make()
                continue
            steps += [(tokens, task, episode) for tokens in read]
            episode += 1
    live.close()
    return Audit.of(world, steps)


def spread_over_families(tasks: Sequence[Task], each: int) -> list[Task]:
    """The first `each` tasks of every family, alternating, so that any prefix covers the families evenly."""
    by_family: dict[str, list[Task]] = {}
    for task in tasks:
        by_family.setdefault(task.family, []).append(task)
    return [members[i] for i in range(each) for members in by_family.values() if i < len(members)]


# Sources of the audited episodes.

NOISE = 0.3  # share of random actions of an expert, so that episodes of a task differ
SOURCES = {
    "policy": "episodes played by the policy itself",
    "expert": f"episodes played by the expert, {NOISE:.0%} of the actions at random",
}  # source -> description


def play_audit(setup: RolloutSetup, source: str, tasks_each: int, members: int, most: int) -> Audit:
    """An audit of `tasks_each` tasks per family with `members` episodes each. After `most` steps no further task is played, but
    at least two per family."""
    if source not in SOURCES:
        raise unknown("audit agent", source, SOURCES)
    tasks = spread_over_families(setup.tasks, tasks_each)
    at_least = MIN_TASKS * len({task.family for task in tasks})
    if source == "policy":
        # The first task of all families in one batch, then the second, …
        groups: list[Group] = []
        width = max(1, at_least // MIN_TASKS)
        for start in range(0, len(tasks), width):
            if start >= at_least and sum(len(group.steps) for group in groups) >= most:
                break
            groups += setup.play(tasks[start : start + width], members, derive(setup.seed, "audit", start))
        played = enumerate(trajectory for group in groups for trajectory in group.trajectories)
        return Audit.of(setup.world, [(step.prompt_tokens, t.task, number) for number, t in played for step in t.steps])
    expert = setup.world.expert()

    def noisy(task: Task, member: int) -> Expert:
        return NoisyAgent(expert(task), NOISE, random.Random(derive(setup.seed, "audit", task.id, member)))

    room = setup.sampling.max_tokens
    return audit(setup.world, tasks, members, setup.context, setup.policy, noisy, room, setup.max_steps, most, at_least)
