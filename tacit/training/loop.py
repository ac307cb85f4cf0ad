"""The RL loop: collect rollouts, then rewards, credit, columns, update, companions.

The loop does not depend on a method, world or engine. With `overlap` it collects the next rollouts during the update.
Importance ratios use the log-probabilities stored with each completion, so older rollouts stay valid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacit.core.credit import Batch, Credit, Iteration, Rewards, check_results, sum_terms
from tacit.core.errors import NonFiniteLoss, TacitError
from tacit.core.method import Explained, Method, Schedule, companions_of, credit_terms
from tacit.core.protocols import PinnedSampler, Policy, Sampling
from tacit.core.seeds import derive
from tacit.core.types import Group, IterationInfo, StopReason, Task
from tacit.evaluation.scores import mean
from tacit.rollout.episodes import NO_OBSERVER, RolloutObserver, rollout_groups
from tacit.rollout.worlds import WorldPool
from tacit.training.settings import TrainSettings

Marks = dict[str, Sequence[Any] | np.ndarray]
PHASES = ("rollout", "companions", "credit", "scoring", "update")


@dataclass(frozen=True)
class Collector:
    method: Method
    tasks: Sequence[Task]
    worlds: WorldPool
    max_tokens: int
    max_steps: int
    name: str = ""
    """empty if the run has one world"""
    share: float = 1.0
    """share of an iteration's groups"""

    def collect(
        self, info: IterationInfo, policy: Policy, count: int, drawn: int, observer: RolloutObserver = NO_OBSERVER
    ) -> tuple[list[Group], list[Group], int]:
        """Returns (all groups rolled out, groups to train on, number of tasks drawn).

        `drawn`: number of tasks drawn before. A method with a `selection` (dynamic sampling) rolls out more tasks until `count`
        groups are selected, for at most `rounds` attempts.
        """
        method, schedule = self.method, self.method.schedule
        sampling = Sampling(schedule.temperature, schedule.top_p, schedule.top_k, self.max_tokens)
        played, intact, selected = list[Group](), list[Group](), list[Group]()
        count = min(count, len(self.tasks))
        num_drawn = 0
        for attempt in range(method.selection.rounds if method.selection else 1):
            indices = draw_tasks(len(self.tasks), drawn + num_drawn, count, derive(info.seed, "tasks", self.name))
            num_drawn += count
            groups = rollout_groups(
                [self.tasks[i] for i in indices],
                schedule.group_size,
                derive(info.seed, "rollout", info.iteration, attempt, *([self.name] if self.name else [])),
                method.conditions,
                method.context,
                self.worlds,
                policy,
                sampling,
                self.max_steps,
                method.hidden_state,
                observer=observer,
            )
            played += groups
            intact = [group for group in (g.without_crashes() for g in groups) if len(group)]
            if method.selection is None:
                return played, intact, num_drawn
            selected += [group for group in intact if method.selection.keep(group)]
            if len(selected) >= count:
                break
        # If no group was selected in any round, train on the last round's groups, as the paper does.
        return played, selected[:count] or intact, num_drawn


def draw_tasks(pool: int, drawn: int, count: int, seed: int) -> np.ndarray:
    """Indices of the `count` tasks after the first `drawn`: epochs over the pool, each in its own seeded order."""
    parts = []
    while count > 0:
        epoch, start = divmod(drawn, pool)
        order = np.random.default_rng(derive(seed, epoch)).permutation(pool)
        parts.append(order[start : start + count])
        drawn, count = drawn + len(parts[-1]), count - len(parts[-1])
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def divide_groups(groups: int, shares: Sequence[float], number: int) -> list[int]:
    """Groups per world in iteration `number`: each share rounded down, the remainder to the worlds furthest below their share
    so far."""
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


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of one iteration; lists have one entry per collector."""

    info: IterationInfo
    played: list[list[Group]]
    """every group rolled out, including crashed episodes and groups that were not selected"""
    groups: list[list[Group]]
    """groups to train on"""
    seconds: float
    drawn: dict[str, int]
    """tasks drawn so far, by world"""


@dataclass
class Loop:
    """RL iterations over one or several worlds. Iteration n depends on (seed, n) alone, so it can be repeated exactly."""

    collectors: Sequence[Collector]
    policy: Policy
    seed: int = 0
    iterations: int = 1
    drawn: dict[str, int] = field(default_factory=dict)
    """tasks drawn so far, by world"""
    observer: Callable[[int], RolloutObserver] = lambda number: NO_OBSERVER
    """makes the observer of an iteration's rollouts"""
    overlap: bool = False
    """collect the next iteration during this update; the policy must be a `PinnedSampler`"""
    drawn_at_update: dict[str, int] = field(default_factory=dict)
    """like `drawn`, but without rollouts that were not trained on yet; a resumed run starts from here"""
    _next: Rollouts | None = None

    def iterate(self, number: int) -> Iteration:
        rollouts, self._next = self._next or self.collect(number), None
        self.drawn_at_update = rollouts.drawn
        if not self.overlap or number >= self.iterations:
            return self.learn(rollouts)
        assert isinstance(self.policy, PinnedSampler)
        # Worlds run in the main thread, where SIGALRM can interrupt them.
        with self.policy.pin_weights(), ThreadPoolExecutor(1) as executor:
            learning = executor.submit(self.learn, rollouts)
            self._next = self.collect(number + 1)
        return learning.result()

    def collect(self, number: int) -> Rollouts:
        info, start = IterationInfo(self.seed, number, self.iterations), time.perf_counter()
        played, groups, observer = [], [], self.observer(number)
        counts = divide_groups(self.schedule.groups, [collector.share for collector in self.collectors], number)
        for collector, count in zip(self.collectors, counts, strict=True):
            drawn = self.drawn.get(collector.name, 0)
            all_groups, selected, taken = collector.collect(info, self.policy, count, drawn, observer)
            self.drawn[collector.name] = drawn + taken
            played.append(all_groups)
            groups.append(selected)
        observer.on_end()
        return Rollouts(info, played, groups, time.perf_counter() - start, dict(self.drawn))

    def learn(self, rollouts: Rollouts) -> Iteration:
        policy, info = self.policy, rollouts.info
        all_played, all_groups = ([g for world in lists for g in world] for lists in (rollouts.played, rollouts.groups))
        metrics = rollout_metrics(all_played)
        versions = (step.completion.version for group in all_groups for step in group.steps)
        metrics["versions_behind"] = mean(policy.version - version for version in versions)
        seconds = dict.fromkeys(PHASES, 0.0) | {"rollout": rollouts.seconds}
        all_rewards: list[Rewards] = []
        all_credits: list[Credit] = []
        all_marks: list[Marks] = []
        batches: list[Batch] = []

        for collector, played, groups in zip(self.collectors, rollouts.played, rollouts.groups, strict=True):
            method, own_metrics = collector.method, rollout_metrics(played) if len(self.collectors) > 1 else {}
            with timed(seconds, "companions"):
                for companion in method.companions:
                    own_metrics |= companion.observe(groups, policy, info)
            with timed(seconds, "credit"):
                rewards = sum_terms(check_results(term, term(groups, info), groups, Rewards) for term in method.rewards)
            with timed(seconds, "scoring"):  # before credit: a credit term may wait for a companion on another machine
                columns = [(column, column(groups, rewards, policy, info)) for column in method.columns if groups]
            with timed(seconds, "credit"):
                terms = credit_terms(method.credits, groups, rewards, policy, info)
                credits = sum_terms(terms)
            marks: list[Marks] = [{} for _ in groups]
            for term in terms:
                if isinstance(term, Explained):
                    own_metrics |= term.metrics
                    for mark, more in zip(marks, term.marks, strict=False):  # a term may return no marks
                        mark.update(more)
            if groups:
                batch = Batch.from_groups(groups, credits, method.schedule.temperature)
                for column, values in columns:
                    batch = batch.with_column(column.name, column.per, values)
                batches.append(batch)
            metrics |= self._prefix(collector, own_metrics)
            all_rewards, all_credits, all_marks = all_rewards + rewards, all_credits + credits, all_marks + marks

        method = self.collectors[0].method  # worlds share the losses and the schedule
        if batches and method.losses:
            with timed(seconds, "update"):
                lr = self.schedule.lr_at(info)
                metrics |= update(Batch.concatenate(batches), method, policy, info.derive("update"), lr) | {"lr": lr}

        with timed(seconds, "companions"):
            for companion, worlds in companions_of([collector.method for collector in self.collectors]):
                learned = companion.learn([g for world in worlds for g in rollouts.groups[world]], policy, info)
                metrics |= learned if len(worlds) > 1 else self._prefix(self.collectors[worlds[0]], learned)
        metrics |= {f"seconds_{phase}": spent for phase, spent in seconds.items()}
        return Iteration(all_played, all_groups, all_rewards, all_credits, metrics, all_marks)

    def _prefix(self, collector: Collector, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """With several worlds, prefix a world's metrics with its name: `countdown/success`."""
        if len(self.collectors) == 1:
            return metrics
        return {f"{collector.name}/{metric}": value for metric, value in metrics.items()}

    @property
    def schedule(self) -> Schedule:
        return self.collectors[0].method.schedule


def update(batch: Batch, method: Method, policy: Policy, seed: int, lr: float | None = None) -> dict[str, float]:
    """`epochs` passes over the batch, each split at random into the schedule's optimizer steps.

    Returns the metrics of the last step, and `sampler_gap`: the `behaviour_gap` of the first step, before any weight changed.
    `lr` defaults to the schedule's peak.
    """
    schedule, metrics, gap = method.schedule, dict[str, float](), None
    steps = schedule.steps_per_pass(len(batch))
    for epoch in range(schedule.epochs):
        parts = [batch]
        if steps > 1:
            shuffled = np.random.default_rng(derive(seed, epoch)).permutation(len(batch))
            parts = [batch.select(np.sort(rows)) for rows in np.array_split(shuffled, min(steps, len(batch)))]
        for part in parts:
            try:
                metrics = policy.update(part, method.losses, schedule.lr if lr is None else lr)
            except NonFiniteLoss as error:
                error.batch = part
                raise
            gap = metrics.get("behaviour_gap") if gap is None else gap
    return metrics | ({} if gap is None else {"sampler_gap": gap})


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[phase] += time.perf_counter() - start


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Means over episodes or turns; `group_spread`: standard deviation of the groups' success rates. Empty without episodes."""
    episodes = [t for g in groups for t in g.trajectories]
    steps = [s for g in groups for s in g.steps]
    if not episodes:
        return {}
    return {
        "success": mean(t.success for t in episodes),
        "score": mean(t.score for t in episodes),
        "steps": mean(len(t) for t in episodes),
        "valid": mean(s.valid for s in steps),
        "effective": mean(s.effective for s in steps),
        "prompt_tokens": mean(len(s.prompt_tokens) for s in steps),
        "completion_tokens": mean(len(s.completion.tokens) for s in steps),
        "mixed_groups": mean(len({t.success for t in g.trajectories}) > 1 for g in groups),
        "groups": len(groups),
        "group_spread": float(np.std([mean(t.success for t in g.trajectories) for g in groups])),
        "episodes": len(episodes),
        "turns": len(steps),
        "generated_tokens": sum(len(s.completion.tokens) for s in steps),
        "crashed": sum(t.stop.crashed for t in episodes),
        **{f"stop_{reason.value}": mean(t.stop is reason for t in episodes) for reason in StopReason},
    }


def check_overlap(settings: TrainSettings, methods: Sequence[Method], can_pin_weights: bool = True) -> None:
    """Refuse `overlap` if rollouts use what a companion learns during the update, or if the sampler cannot pin its weights."""
    if not settings.overlap:
        return
    for method in methods:
        if names := [c.name for c in method.companions if c.read_in_rollouts]:
            raise TacitError(
                f"--overlap {settings.overlap} does not work with {method.name!r}: its rollouts use what "
                f"{' and '.join(names)} learned from the previous ones. Use --overlap 0. (If rollouts never use your "
                "companion, set read_in_rollouts = False on it.)"
            )
    if not can_pin_weights:
        raise TacitError(
            f"--overlap {settings.overlap} needs samplers with their own copy of the weights. Use --engine sharded "
            "--engine.servers 1, or --overlap 0."
        )


def check_overlap_policy(settings: TrainSettings, policy: Policy) -> None:
    """`check_overlap` for a loaded policy."""
    if settings.overlap:
        check_overlap(settings, (), isinstance(policy, PinnedSampler))
        with policy.pin_weights():  # type: ignore[attr-defined]  # raises if something is missing
            pass
