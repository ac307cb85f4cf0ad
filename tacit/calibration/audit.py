"""An audit set: prompts of played episodes, by task and family, to look at a policy's geometry with."""

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

Player = Callable[[Task, int], Expert]
"""(task, member of its group) -> who plays it"""
FEWEST = 2
"""tasks of each family that are played however many steps they take: one to learn from, one to be asked about"""


@dataclass(frozen=True, eq=False)
class Audit:
    prompts: list[np.ndarray]
    """tokens of each step, episode by episode"""
    task_N: np.ndarray
    episode_N: np.ndarray
    family_N: np.ndarray
    families: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.prompts)

    @classmethod
    def of(cls, steps: Sequence[tuple[np.ndarray, Task, int]]) -> Audit:
        """From (prompt tokens, task, episode of all) of every step."""
        families = tuple(dict.fromkeys(task.family for _, task, _ in steps))
        numbers = {name: i for i, name in enumerate(dict.fromkeys(task.id for _, task, _ in steps))}
        return cls(
            [tokens for tokens, _, _ in steps],
            np.array([numbers[task.id] for _, task, _ in steps], np.int64),
            np.array([episode for _, _, episode in steps], np.int64),
            np.array([families.index(task.family) for _, task, _ in steps], np.int64),
            families,
        )

    @classmethod
    def of_groups(cls, groups: Sequence[Group]) -> Audit:
        """What was read in these episodes."""
        episodes = [trajectory for group in groups for trajectory in group.trajectories]
        return cls.of([(step.prompt_tokens, t.task, number) for number, t in enumerate(episodes) for step in t.steps])


class Noisy:
    """Someone who plays, and now and then does something else that the world admits."""

    def __init__(self, player: Expert | None, noise: float, rng: random.Random) -> None:
        self._player, self._noise, self._rng = player, noise, rng

    def act(self, observation: Observation) -> str:
        action = self._player.act(observation) if self._player else ""
        if self._player is not None and (self._rng.random() >= self._noise or not observation.actions):
            return action
        if not observation.actions:
            raise TacitError("this world lists no actions, so it cannot be played at random; let its expert play.")
        return self._rng.choice(observation.actions)


class Again:
    """Repeats recorded actions."""

    def __init__(self, actions: Sequence[str]) -> None:
        self._actions = iter(actions)

    def act(self, observation: Observation) -> str:
        return next(self._actions)


def audit(
    world: Environment,
    tasks: Sequence[tuple[Task, int]],
    context: Context,
    tokenizer: Tokenizer,
    player: Player,
    room: int,
    lengths: Callable[[Task, int], int] | None = None,
    most: int | None = None,
    at_least: int = 0,
) -> Audit:
    """Play each task as many times as it is paired with; keep every prompt that leaves `room` for a completion.

    `lengths` bounds single episodes (of a recording); an episode in which the world or the player raises is left out. After
    `most` steps no further task is begun, but for the first `at_least` of them: steps that were played are counted, not those
    an episode might have had, and a task is played whole or not at all.
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
                course = play_episode(live, task, player(task, member), limit)
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
    """The first `each` tasks of every family in turn: one of each family, then the second of each, …

    So wherever the list is cut off, families have been dealt with alike.
    """
    by_family: dict[str, list[Task]] = {}
    for task in tasks:
        by_family.setdefault(task.family, []).append(task)
    return [members[i] for i in range(each) for members in by_family.values() if i < len(members)]


# Who plays the episodes that layers are compared on: the policy itself, or a recording, the expert, or chance.

NOISE = 0.3
"""share of random actions when an expert plays: episodes of one task must differ to be compared"""
SOURCES = {
    "policy": "episodes played by the policy itself",
    "recorded": "recorded episodes",
    "expert": f"episodes played by the expert, {NOISE:.0%} of the actions at random",
    "random": "episodes played at random",
}
"""how each is told"""


def play_audit(setup: RolloutSetup, source: str, tasks_each: int, members: int, most: int) -> Audit:
    """`tasks_each` tasks of every family, `members` episodes each, from one of the SOURCES. Once `most` steps have been played
    no further task is begun; every family has been dealt with alike by then, and has its first two."""
    if source not in SOURCES:
        raise unknown("audit player", source, SOURCES)
    if source == "recorded":
        return _recorded(setup, most)
    tasks = spread_over_families(setup.tasks, tasks_each)
    at_least = FEWEST * len({task.family for task in tasks})
    if source == "policy":
        return _by_policy(setup, tasks, members, most, at_least)
    expert = setup.world.expert() if source == "expert" else None

    def noisy(task: Task, member: int) -> Expert:
        rng = random.Random(derive(setup.seed, "audit", task.id, member))
        return Noisy(expert(task) if expert else None, NOISE, rng)

    def limit(task: Task, member: int) -> int:
        return setup.max_steps

    pairs = [(task, members) for task in tasks]
    room = setup.sampling.max_tokens
    return audit(setup.world, pairs, setup.context, setup.policy, noisy, room, limit, most, at_least)


def _by_policy(setup: RolloutSetup, tasks: Sequence[Task], members: int, most: int, at_least: int) -> Audit:
    """The first tasks of all families side by side, then the second ones, …: one batch for the sampler each time."""
    groups: list[Group] = []
    width = max(1, at_least // FEWEST)
    for start in range(0, len(tasks), width):
        if start >= at_least and sum(len(group.steps) for group in groups) >= most:
            break
        groups += setup.play(tasks[start : start + width], members, derive(setup.seed, "audit", start))
    found = Audit.of_groups(groups)
    if not len(found):
        raise TacitError(f"no episode of world {setup.world.name!r} could be played, so there is nothing to calibrate on.")
    return found


def recordings(run: Path | None) -> list[Path]:
    return sorted((run / "trajectories").glob("rl-*.jsonl.gz")) if run else []


def _recorded(setup: RolloutSetup, most: int) -> Audit:
    """The newest recorded iterations, told again in the present context."""
    actions = _recorded_actions(setup, most)
    by_task = {task.id: episodes for task, episodes in actions}

    def replay(task: Task, member: int) -> Expert:
        return Again(by_task[task.id][member])

    pairs = [(task, len(episodes)) for task, episodes in actions]
    room = setup.sampling.max_tokens
    return audit(
        setup.world, pairs, setup.context, setup.policy, replay, room, lambda task, member: len(by_task[task.id][member])
    )


def _recorded_actions(setup: RolloutSetup, most: int) -> list[tuple[Task, list[list[str]]]]:
    """Tasks with the actions of their episodes, family by family in turn, up to about `most` steps."""
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
    chosen, steps = [], 0
    for task in spread_over_families([known[name] for name in found], len(found)):
        if steps < most:
            chosen.append((task, found[task.id]))
            steps += sum(map(len, found[task.id]))
    return chosen
