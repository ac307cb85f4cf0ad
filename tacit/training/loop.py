"""The loop. It knows no method, no world and no engine.

collect   what the agents did, in every world of the run
learn     observe → rewards → credits → columns → update → learn

Each half is a function of what it is given. With `behind` the next `collect` goes on beside this `learn`, with the weights from
before it; completions say by which version of the policy they were written, and ratios are taken against what was said then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np

from tacit.core.credit import Batch, Credit, Iteration, Rewards, given_by
from tacit.core.errors import NonFiniteLoss, TacitError
from tacit.core.method import Explained, Method, Schedule, companions_of
from tacit.core.protocols import PinnedSampler, Policy
from tacit.core.seeds import derive
from tacit.core.types import Group, IterationInfo, StopReason
from tacit.rollout.episodes import NO_OBSERVER, RolloutObserver
from tacit.training.collect import Collector, share_out
from tacit.training.settings import TrainSettings

# Whether episodes can be played while others are learned from.


def check_overlap(settings: TrainSettings, methods: Sequence[Method], can_pin_weights: bool = True) -> None:
    """Refuse it, before anything is loaded, where a companion changes what is read meanwhile, or where the sampler would move
    with the weights (`can_pin_weights` is False). A companion that only looks at finished episodes (for a reward, a credit, a
    radius) does so as ever: before the update, with the policy that is about to be updated."""
    if not settings.overlap:
        return
    for method in methods:
        if names := [c.name for c in method.companions if getattr(c, "read_in_play", True)]:
            raise TacitError(
                f"overlap = {settings.overlap}: episodes of {method.name!r} read what {' and '.join(names)} learned "
                "from those before them; they cannot be played while it learns. Use --overlap 0. (A companion of your own that "
                "no episode reads says read_in_play = False.)"
            )
    if not can_pin_weights:
        raise TacitError(
            f"overlap = {settings.overlap} needs an engine whose samplers have weights of their own: --engine sharded with "
            "--engine.servers 1, or --overlap 0."
        )


def check_held(settings: TrainSettings, policy: Policy) -> None:
    """The same of a policy that is there."""
    if not settings.overlap:
        return
    check_overlap(settings, (), isinstance(policy, PinnedSampler))
    assert isinstance(policy, PinnedSampler)
    with policy.pin_weights():  # says what is missing
        pass


# What a rollout looked like, in numbers.


def rollout_statistics(groups: Sequence[Group]) -> dict[str, float]:
    """Means over episodes or turns; one share per stop reason, so that every ending is accounted for. `group_spread` is the
    standard deviation of the groups' success: some tasks are easier than others."""
    episodes = [t for g in groups for t in g.trajectories]
    steps = [s for g in groups for s in g.steps]
    if not episodes:
        return {}
    mixed = [len({t.success for t in g.trajectories}) > 1 for g in groups]
    return {
        "success": _mean(t.success for t in episodes),
        "score": _mean(t.score for t in episodes),
        "steps": _mean(len(t) for t in episodes),
        "valid": _mean(s.valid for s in steps),
        "effective": _mean(s.effective for s in steps),
        "prompt_tokens": _mean(len(s.prompt_tokens) for s in steps),
        "completion_tokens": _mean(len(s.completion.tokens) for s in steps),
        "mixed_groups": _mean(mixed),
        "groups": len(groups),
        "group_spread": float(np.std([_mean(t.success for t in g.trajectories) for g in groups])),
        "episodes": len(episodes),
        "turns": len(steps),
        "generated_tokens": sum(len(s.completion.tokens) for s in steps),
        "crashed": sum(t.stop.crashed for t in episodes),
        **{f"stop_{reason.value}": _mean(t.stop is reason for t in episodes) for reason in StopReason},
    }


def written_first(groups: Sequence[Group], characters: int = 300) -> str:
    """The first completion, as Python writes it: what is wrong with it may be a line feed."""
    text = next((step.completion.text for group in groups for step in group.steps), "")
    return repr(text if len(text) <= characters else f"{text[:characters]} …") if text else ""


def staleness(groups: Sequence[Group], version: int) -> float:
    """How many updates ago, on average, the completions were written that are about to be learned from; 0 is on-policy."""
    return _mean(version - step.completion.version for group in groups for step in group.steps)


def by_world(name: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """A world's numbers under its name: `countdown/success`."""
    return {f"{name}/{metric}": value for metric, value in metrics.items()}


def _mean(values) -> float:
    values = list(values)
    return float(np.mean(values)) if values else 0.0


Term = TypeVar("Term", Rewards, Credit)
Marks = dict[str, Sequence[Any] | np.ndarray]
PHASES = ("rollout", "companions", "credit", "scoring", "update")


@dataclass(frozen=True)
class Collected:
    """What was played in one iteration."""

    info: IterationInfo
    played: list[list[Group]]
    """per collector: every group rolled out, crashed episodes and unselected groups included"""
    groups: list[list[Group]]
    """per collector: those to train on"""
    seconds: float
    drawn: dict[str, int]
    """tasks taken by then in each world"""


@dataclass
class Loop:
    """Who practises what, where, and how far. The randomness of iteration n is (seed, n): run it again and the same happens."""

    collectors: Sequence[Collector]
    policy: Policy
    seed: int = 0
    iterations: int = 1
    drawn: dict[str, int] = field(default_factory=dict)
    """tasks taken so far in each world, by its name: where the walk through its pool stands"""
    observer: Callable[[int], RolloutObserver] = lambda number: NO_OBSERVER
    """of what is played in an iteration"""
    behind: bool = False
    """play the next iteration while this one is learned from; the policy's samplers must be able to wait (`PinnedSampler`)"""
    learned: dict[str, int] = field(default_factory=dict)
    """as `drawn`, of what has been learned from: a run that is resumed draws again what came after"""
    _ahead: Collected | None = None

    def iterate(self, number: int) -> Iteration:
        collected, self._ahead = self._ahead or self.collect(number), None
        self.learned = collected.drawn
        if not self.behind or number >= self.iterations:
            return self.learn(collected)
        assert isinstance(self.policy, PinnedSampler)
        # Worlds stay with the main thread, where a hang can be cut off; learning waits for others most of the time.
        with self.policy.pin_weights(), ThreadPoolExecutor(1) as beside:
            learning = beside.submit(self.learn, collected)
            self._ahead = self.collect(number + 1)
        return learning.result()

    def collect(self, number: int) -> Collected:
        info, began = IterationInfo(self.seed, number, self.iterations), time.perf_counter()
        played, groups, observer = [], [], self.observer(number)
        counts = share_out(self.schedule.groups, [collector.share for collector in self.collectors], number)
        for collector, count in zip(self.collectors, counts, strict=True):
            here, sound, taken = collector.collect(info, self.policy, count, self.drawn.get(collector.name, 0), observer)
            self.drawn[collector.name] = self.drawn.get(collector.name, 0) + taken
            played.append(here)
            groups.append(sound)
        observer.on_end()
        return Collected(info, played, groups, time.perf_counter() - began, dict(self.drawn))

    def learn(self, collected: Collected) -> Iteration:
        policy, info = self.policy, collected.info
        metrics = rollout_statistics([g for here in collected.played for g in here])
        if (version := getattr(policy, "version", None)) is not None:
            metrics["versions_behind"] = staleness([g for here in collected.groups for g in here], version)
        seconds = dict.fromkeys(PHASES, 0.0) | {"rollout": collected.seconds}
        rewards: list[Rewards] = []
        credits: list[Credit] = []
        marks: list[Marks] = []
        batches: list[Batch] = []
        for collector, played, groups in zip(self.collectors, collected.played, collected.groups, strict=True):
            method, own = collector.method, rollout_statistics(played) if len(self.collectors) > 1 else {}
            with timed(seconds, "companions"):
                for companion in method.companions:
                    own |= companion.observe(groups, policy, info)
            with timed(seconds, "credit"):
                earned = total(given_by(term, term(groups, info), groups, Rewards) for term in method.rewards)
            with timed(seconds, "scoring"):  # before credit, which may have to wait for a companion that works elsewhere
                columns = [(c, c(groups, earned, policy, info)) for c in method.columns if groups]
            with timed(seconds, "credit"):
                terms = [given_by(term, term(groups, earned, policy, info), groups, Credit) for term in method.credits]
                given = total(terms)
                explained, noted = explanations(terms, len(groups))
            if groups:
                batch = Batch.from_groups(groups, given, method.schedule.temperature)
                for column, values in columns:
                    batch = batch.with_column(column.name, column.per, values)
                batches.append(batch)
            metrics |= self._named(collector, own | explained)
            rewards, credits, marks = rewards + earned, credits + given, marks + noted

        method = self.collectors[0].method
        if batches and method.losses:
            with timed(seconds, "update"):
                lr, seed = self.schedule.lr_at(info), info.derive("update")
                metrics |= {**update(Batch.concatenate(batches), method, policy, seed, lr), "lr": lr}

        with timed(seconds, "companions"):
            for companion, places in companions_of([collector.method for collector in self.collectors]):
                learned = companion.learn([g for place in places for g in collected.groups[place]], policy, info)
                metrics |= learned if len(places) > 1 else self._named(self.collectors[places[0]], learned)
        metrics |= {f"seconds_{phase}": spent for phase, spent in seconds.items()}
        flat = [g for here in collected.played for g in here], [g for here in collected.groups for g in here]
        return Iteration(*flat, rewards, credits, metrics, marks)

    def _named(self, collector: Collector, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """A world's own numbers carry its name, where there are several."""
        return metrics if len(self.collectors) == 1 else by_world(collector.name, metrics)

    @property
    def schedule(self) -> Schedule:
        """One for all worlds: they share the update."""
        return self.collectors[0].method.schedule


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[phase] += time.perf_counter() - began


def update(batch: Batch, method: Method, policy: Policy, seed: int, lr: float | None = None) -> dict[str, float]:
    """`epochs` passes over the batch, each in the schedule's optimiser steps; metrics are those of the last step. `lr` instead
    of the schedule's peak. `sampler_gap` is what `behaviour_gap` was at the first step, before any of them moved a weight."""
    schedule, metrics, gap = method.schedule, dict[str, float](), None
    lr = schedule.lr if lr is None else lr
    for epoch in range(schedule.epochs):
        for part in _parts(batch, schedule.steps_per_pass(len(batch)), derive(seed, epoch)):
            try:
                metrics = policy.update(part, method.losses, lr)
            except NonFiniteLoss as error:
                error.batch = part
                raise
            gap = metrics.get("behaviour_gap") if gap is None else gap
    return metrics | ({} if gap is None else {"sampler_gap": gap})


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


def explanations(terms: Sequence[Sequence[Credit]], groups: int) -> tuple[dict[str, float], list[Marks]]:
    """What credit terms have to say about how they came to their credits: metrics, and per group named columns of steps."""
    metrics: dict[str, float] = {}
    marks: list[Marks] = [{} for _ in range(groups)]
    for term in terms:
        if isinstance(term, Explained):
            metrics |= term.metrics
            for noted, more in zip(marks, term.marks, strict=False):  # a term may have nothing to note
                noted.update(more)
    return metrics, marks
