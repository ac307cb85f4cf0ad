"""The loop. It knows no method, no world and no engine.

groups  = what the agent did
rewards = what each step was worth
credits = which token gets how much of it
update  = how the weights move
learn   = what else learns
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TypeVar

import numpy as np

from tacit.core.batch import Batch
from tacit.core.credit import Credit, Rewards
from tacit.core.errors import NonFiniteLoss
from tacit.core.iteration import Iteration
from tacit.core.method import Explained, Method
from tacit.core.protocols import Policy, Sampling
from tacit.core.seeds import derive
from tacit.core.types import Group, Task
from tacit.rollout.episodes import rollout_groups
from tacit.rollout.worlds import WorldPool
from tacit.training.statistics import rollout_statistics

Term = TypeVar("Term", Rewards, Credit)


@dataclass(frozen=True)
class Loop:
    """Who practises what, where, and how far. The randomness of iteration n is (seed, n): run it again and the same happens."""

    method: Method
    tasks: Sequence[Task]
    worlds: WorldPool
    policy: Policy
    max_tokens: int
    """the longest completion"""
    max_steps: int
    """the longest episode"""
    seed: int = 0

    def iterate(self, number: int) -> Iteration:
        method, policy = self.method, self.policy
        played, groups = self.collect(number)
        metrics = rollout_statistics(played)
        for companion in method.companions:
            metrics |= companion.observe(groups, policy)

        rewards = total(term(groups) for term in method.rewards)
        terms = [term(groups, rewards, policy) for term in method.credits]
        credits = total(terms)
        explained, marks = explanations(terms, len(groups))
        metrics |= explained

        if groups:
            batch = Batch.from_groups(groups, credits, method.schedule.temperature)
            for column in method.columns:
                batch = batch.with_column(column.name, column.per, column(groups, rewards, policy))
            metrics |= update(batch, method, policy, derive(self.seed, "update", number))

        for companion in method.companions:
            metrics |= companion.learn(groups, policy)
        return Iteration(played, groups, rewards, credits, metrics, marks)

    def collect(self, number: int) -> tuple[list[Group], list[Group]]:
        """(all groups rolled out, those to train on). A method with a selection rolls out more tasks until it has enough."""
        method, schedule, chosen = self.method, self.method.schedule, []
        sampling = Sampling(temperature=schedule.temperature, top_p=schedule.top_p, max_tokens=self.max_tokens)
        played: list[Group] = []
        for attempt in range(method.selection.rounds if method.selection else 1):
            place = derive(self.seed, "rollout", number, attempt)
            count = min(schedule.groups, len(self.tasks))
            picked = np.random.default_rng(place).choice(len(self.tasks), size=count, replace=False)
            fresh = rollout_groups(
                [self.tasks[i] for i in picked],
                schedule.group_size,
                place,
                method.conditions,
                method.context,
                self.worlds,
                self.policy,
                sampling,
                self.max_steps,
                method.hidden_layer,
            )
            played += fresh
            sound = [group for group in (g.without_crashes() for g in fresh) if len(group)]
            if method.selection is None:
                return played, sound
            chosen += [group for group in sound if method.selection.keep(group)]
            if len(chosen) >= schedule.groups:
                break
        # Not one group to learn from in all rounds: train on what there is, as the paper does.
        return played, chosen[: schedule.groups] or sound


def update(batch: Batch, method: Method, policy: Policy, seed: int) -> dict[str, float]:
    """`epochs` passes over the batch, each in the schedule's optimiser steps; metrics are those of the last step."""
    schedule, metrics = method.schedule, {}
    for epoch in range(schedule.epochs):
        for part in _parts(batch, schedule.steps_per_pass(len(batch)), derive(seed, epoch)):
            try:
                metrics = policy.update(part, method.losses, schedule.lr)
            except NonFiniteLoss as error:
                error.batch = part
                raise
    return metrics


def _parts(batch: Batch, count: int, seed: int) -> Iterator[Batch]:
    """The batch in `count` random parts of about equal size; in one part, as it is."""
    if count <= 1:
        yield batch
        return
    shuffled = np.random.default_rng(seed).permutation(len(batch))
    for rows in np.array_split(shuffled, min(count, len(batch))):
        yield batch.select(np.sort(rows))


def total(terms: Iterable[Sequence[Term]]) -> list[Term]:
    """Terms added up, group by group."""
    return [reduce(add, parts) for parts in zip(*terms, strict=True)]


def explanations(terms: Sequence[Sequence[Credit]], groups: int) -> tuple[dict[str, float], list[dict[str, np.ndarray]]]:
    """What credit terms have to say about how they came to their credits: metrics, and per group named columns of steps."""
    metrics: dict[str, float] = {}
    marks: list[dict[str, np.ndarray]] = [{} for _ in range(groups)]
    for term in terms:
        if isinstance(term, Explained):
            metrics |= term.metrics
            for noted, more in zip(marks, term.marks, strict=False):  # a term may have nothing to note
                noted.update(more)
    return metrics, marks
