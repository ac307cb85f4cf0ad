"""One world of a run: what is practised there, by which method, in which simulators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.core.method import Method
from tacit.core.moment import Moment
from tacit.core.protocols import Policy, Sampling
from tacit.core.seeds import derive
from tacit.core.types import Group, Task
from tacit.rollout.episodes import rollout_groups
from tacit.rollout.onlookers import NOBODY, Onlooker
from tacit.rollout.worlds import WorldPool


@dataclass(frozen=True)
class Playground:
    method: Method
    tasks: Sequence[Task]
    worlds: WorldPool
    max_tokens: int
    """the longest completion"""
    max_steps: int
    """the longest episode"""
    name: str = ""
    share: float = 1.0
    """of the groups of an iteration"""

    def collect(
        self, moment: Moment, policy: Policy, count: int, drawn: int, onlooker: Onlooker = NOBODY
    ) -> tuple[list[Group], list[Group], int]:
        """(all groups rolled out, those to train on, tasks taken). A method with a selection rolls out more tasks until it has
        enough. `drawn` tasks of the pool were taken before."""
        method, schedule, chosen = self.method, self.method.schedule, []
        sampling = Sampling(temperature=schedule.temperature, top_p=schedule.top_p, max_tokens=self.max_tokens)
        played: list[Group] = []
        sound: list[Group] = []
        count = min(count, len(self.tasks))
        taken = 0
        for attempt in range(method.selection.rounds if method.selection else 1):
            picked = walk(len(self.tasks), drawn + taken, count, derive(moment.seed, "tasks", self.name))
            taken += count
            fresh = rollout_groups(
                [self.tasks[i] for i in picked],
                schedule.group_size,
                derive(moment.seed, "rollout", moment.iteration, attempt, *([self.name] if self.name else [])),
                method.conditions,
                method.context,
                self.worlds,
                policy,
                sampling,
                self.max_steps,
                method.hidden_layer,
                onlooker=onlooker,
            )
            played += fresh
            sound = [group for group in (g.without_crashes() for g in fresh) if len(group)]
            if method.selection is None:
                return played, sound, taken
            chosen += [group for group in sound if method.selection.keep(group)]
            if len(chosen) >= count:
                break
        # Not one group to learn from in all rounds: train on what there is, as the paper does.
        return played, chosen[:count] or sound, taken


def walk(pool: int, drawn: int, count: int, seed: int) -> np.ndarray:
    """The next `count` places of a pool of which `drawn` were taken before: all of it once in a seeded order, then all of it in
    another. Nothing is remembered but how far the walk has come."""
    places = []
    while count > 0:
        epoch, at = divmod(drawn, pool)
        order = np.random.default_rng(derive(seed, epoch)).permutation(pool)
        places.append(order[at : at + count])
        drawn, count = drawn + len(places[-1]), count - len(places[-1])
    return np.concatenate(places) if places else np.zeros(0, np.int64)


def share_out(groups: int, shares: Sequence[float], number: int) -> list[int]:
    """How many of an iteration's groups each world gets: its share as a whole number; what is left over goes to whoever is
    furthest behind its share by now, so that over the iterations all get theirs."""
    behind = np.zeros(len(shares))
    counts = np.zeros(len(shares), int)
    quota = groups * np.asarray(shares)
    for _ in range(number):
        behind += quota
        counts = np.floor(quota + 1e-9).astype(int)
        behind -= counts
        for _ in range(groups - int(counts.sum())):
            furthest = int(np.argmax(behind))
            counts[furthest] += 1
            behind[furthest] -= 1
    return counts.tolist()
