"""An audit set: prompts of played episodes by task and family, to examine a policy's hidden states."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tacit.core.errors import TacitError, unknown
from tacit.core.method import Context
from tacit.core.protocols import Tokenizer
from tacit.core.seeds import derive
from tacit.core.types import Group, Observation, Task
from tacit.core.world import Environment, Expert
from tacit.evaluation.evaluate import RolloutSetup
from tacit.rollout.replay import play_episode, render_turns
from tacit.runs.trajectories import read_records

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
    def of(cls, steps: Sequence[tuple[np.ndarray, Task, int]]) -> Audit:
        """From (prompt tokens, task, episode number) of every step."""
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
    """An agent that sometimes takes a random admissible action."""

    def __init__(self, agent: Expert | None, noise: float, rng: random.Random) -> None:
        self._agent, self._noise, self._rng = agent, noise, rng

    def act(self, observation: Observation) -> str:
        action = self._agent.act(observation) if self._agent else ""
        if self._agent is not None and (self._rng.random() >= self._noise or not observation.actions):
            return action
        if not observation.actions:
            raise TacitError("this world lists no actions, so it cannot be played at random; let its expert play.")
        return self._rng.choice(observation.actions)


class ReplayAgent:
    """Replays recorded actions."""

    def __init__(self, actions: Sequence[str]) -> None:
        self._actions = iter(actions)

    def act(self, observation: Observation) -> str:
        return next(self._actions)


def audit(
    world: Environment,
    tasks: Sequence[tuple[Task, int]],
    context: Context,
    tokenizer: Tokenizer,
    agent: MakeAgent,
    room: int,
    lengths: Callable[[Task, int], int] | None = None,
    most: int | None = None,
    at_least: int = 0,
) -> Audit:
    """Play each task once per pair; keep every prompt that leaves `room` for a completion.

    `lengths` bounds single episodes (of a recording). Episodes that raise are dropped. After `most` steps no new task starts,
    except for the first `at_least`; a task is played completely or not at all.
    """
    steps: list[tuple[np.ndarray, Task, int]] = []
    episode = 0
    live = world.make()
    for number, (task, members) in enumerate(tasks):
        if most is not None and number >= at_least and len(steps) >= most:
            break
        for member in range(members):
            limit = lengths(task, member) if lengths else world.max_steps
            try:
                course = play_episode(live, task, agent(task, member), limit)
                read = [
                    turn.tokens for turn in render_turns(context, task, course, tokenizer=tokenizer, room=room) if turn.fits
                ]
            except TacitError:
                raise
            except (Exception, SystemExit):  # a broken world ends its own episode, here as in a rollout
                live = world.make()
                continue
            steps += [(tokens, task, episode) for tokens in read]
            episode += 1
    live.close()
    if not steps:
        raise TacitError(f"no episode of world {world.name!r} could be played, so there is nothing to calibrate on.")
    return Audit.of(steps)


def spread_over_families(tasks: Sequence[Task], each: int) -> list[Task]:
    """The first `each` tasks of every family, interleaved, so that any prefix covers the families evenly."""
    by_family: dict[str, list[Task]] = {}
    for task in tasks:
        by_family.setdefault(task.family, []).append(task)
    return [members[i] for i in range(each) for members in by_family.values() if i < len(members)]


# Sources of the audited episodes.

NOISE = 0.3  # share of random actions of an expert: episodes of a task must differ
SOURCES = {
    "policy": "episodes played by the policy itself",
    "recorded": "recorded episodes",
    "expert": f"episodes played by the expert, {NOISE:.0%} of the actions at random",
    "random": "episodes played at random",
}  # source -> description


def play_audit(setup: RolloutSetup, source: str, tasks_each: int, members: int, most: int) -> Audit:
    """`tasks_each` tasks per family with `members` episodes each. No new task starts after `most` steps; every family has at
    least its first two."""
    if source not in SOURCES:
        raise unknown("audit agent", source, SOURCES)
    if source == "recorded":
        return _recorded(setup, most)
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
        steps = [(step.prompt_tokens, t.task, number) for number, t in played for step in t.steps]
        if not steps:
            raise TacitError(f"no episode of world {setup.world.name!r} could be played, so there is nothing to calibrate on.")
        return Audit.of(steps)
    expert = setup.world.expert() if source == "expert" else None

    def noisy(task: Task, member: int) -> Expert:
        rng = random.Random(derive(setup.seed, "audit", task.id, member))
        return NoisyAgent(expert(task) if expert else None, NOISE, rng)

    pairs, room = [(task, members) for task in tasks], setup.sampling.max_tokens
    limit = setup.max_steps
    return audit(setup.world, pairs, setup.context, setup.policy, noisy, room, lambda task, member: limit, most, at_least)


def recordings(run: Path | None) -> list[Path]:
    return sorted((run / "trajectories").glob("rl-*.jsonl.gz")) if run else []


def _recorded(setup: RolloutSetup, most: int) -> Audit:
    """The newest recorded iterations, up to about `most` steps interleaved by family, rendered with the present prompt."""
    files = recordings(setup.run)
    if not files:
        raise TacitError("there are no recorded episodes of practice; let the policy play (--play policy).")
    known = {task.id: task for task in setup.tasks}
    found: dict[str, list[list[str]]] = {}
    steps = 0
    for file in reversed(files):
        for record in read_records(file):
            if record["task"] in known and record["turns"]:
                found.setdefault(record["task"], []).append([turn["action"] for turn in record["turns"]])
                steps += len(record["turns"])
        if steps >= most:
            break
    if not found:
        raise TacitError("none of the recorded episodes is of a task this run's settings give; let the policy play.")
    pairs, steps = [], 0
    for task in spread_over_families([known[name] for name in found], len(found)):
        if steps < most:
            pairs.append((task, len(found[task.id])))
            steps += sum(map(len, found[task.id]))

    def replay(task: Task, member: int) -> Expert:
        return ReplayAgent(found[task.id][member])

    room = setup.sampling.max_tokens
    return audit(setup.world, pairs, setup.context, setup.policy, replay, room, lambda task, i: len(found[task.id][i]))
