"""An audit set: prompts of played episodes, by task and family, to look at a policy's geometry with."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.protocols import Tokenizer
from tacit.core.types import PLAIN, Observation, Task
from tacit.core.world import Environment, Expert
from tacit.rollout.fitting import fit

Player = Callable[[Task, int], Expert]
"""(task, member of its group) -> who plays it"""


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

    @property
    def labels_N(self) -> np.ndarray:
        """What the probe has to tell: the family, or the task where all tasks are of one family."""
        return self.family_N if len(self.families) > 1 else self.task_N


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
) -> Audit:
    """Play each task as many times as it is paired with; keep every prompt that leaves `room` for a completion.

    `lengths` bounds single episodes (of a recording); an episode in which the world or the player raises is left out.
    """
    prompts: list[np.ndarray] = []
    places: list[tuple[int, int, str]] = []
    episode = 0
    live = world.make()
    for number, (task, members) in enumerate(tasks):
        for member in range(members):
            limit = lengths(task, member) if lengths else world.max_steps
            try:
                read = _play(live, task, context, tokenizer, player(task, member), limit, room)
            except TacitError:
                raise
            except Exception:  # a broken world ends its own episode, here as in a rollout
                live = world.make()
                continue
            prompts += read
            places += [(number, episode, task.family)] * len(read)
            episode += 1
    live.close()
    if not prompts:
        raise TacitError(f"no episode of world {world.name!r} could be played, so there is nothing to calibrate on.")
    families = tuple(dict.fromkeys(family for *_, family in places))
    return Audit(
        prompts,
        np.array([task for task, _, _ in places]),
        np.array([e for _, e, _ in places]),
        np.array([families.index(family) for *_, family in places]),
        families,
    )


def _play(live, task: Task, context: Context, tokenizer: Tokenizer, player: Expert, limit: int, room: int) -> list[np.ndarray]:
    reader, observation, read = context.begin(task, PLAIN), live.reset(task), []
    for _ in range(limit):
        _, tokens, fits = fit(reader.read(observation), tokenizer, room)
        if fits:
            read.append(tokens)
        action = player.act(observation)
        transition = live.step(action)
        reader.record(action, transition)
        observation = transition.observation
        if transition.done or transition.success:
            break
    return read


def spread_over_families(tasks: Sequence[Task], each: int) -> list[Task]:
    """The first `each` tasks of every family, families in order of appearance."""
    by_family: dict[str, list[Task]] = {}
    for task in tasks:
        by_family.setdefault(task.family, []).append(task)
    return [task for members in by_family.values() for task in members[:each]]
