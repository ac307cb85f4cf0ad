"""Credit without clusters: episodes relative to their group or the batch, discounted step returns, and generalized advantages.

    score of a step = outcome of its trajectory + local reward of the step (the invalid-action penalty)

So an invalid step gets less credit; the other steps of its episode do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.errors import TacitError
from tacit.core.method import Column, CreditTerm, Explained
from tacit.core.protocols import REFERENCE, SCORING, VALUES, Critic, Policy
from tacit.core.types import Group, Groups, IterationInfo, flat_steps

Std = Literal["population", "sample"] | None


def standardize(values: np.ndarray, pool: np.ndarray, std: Std = "population", delta: float = 1e-6) -> np.ndarray:
    """A = (values − mean pool) / (std pool + δ); `std=None` only subtracts the mean.

    Zeros if the pool has one member or no spread.
    """
    if len(pool) < 2 or np.ptp(pool) == 0.0:
        return np.zeros_like(values, dtype=np.float64)
    centered = values - pool.mean()
    return centered if std is None else centered / (pool.std(ddof=1 if std == "sample" else 0) + delta)


def leave_one_out(values: np.ndarray) -> np.ndarray:
    """Aᵢ = Rᵢ − mean_{j≠i} Rⱼ = n/(n−1) · (Rᵢ − mean R). A group of one gets zero."""
    n = len(values)
    return np.zeros_like(values, dtype=np.float64) if n < 2 else (values - values.mean()) * (n / (n - 1))


@dataclass(frozen=True)
class EpisodeRelative(CreditTerm):
    """GRPO:  A = (score − mean R) / (std R + δ) over the trajectories of the group.

    `over="steps"`: statistics over all steps, so long trajectories weigh more (as in verl-agent). `std=None` is Dr. GRPO.
    A group of one gets zeros. `episode_credit_magnitude` is the mean of |A| over all tokens.
    """

    std: Std = "population"
    over: Literal["trajectories", "steps"] = "trajectories"
    delta: float = 1e-6

    def __call__(
        self, groups: Groups, rewards: Sequence[Rewards], policy: Policy | None = None, info: IterationInfo | None = None
    ) -> Explained:
        credits = []
        for group, reward in zip(groups, rewards, strict=True):
            if len(group) < 2:
                credits.append(Credit.zeros(group))
                continue
            scores_N = step_scores(reward)
            pool = reward.outcomes_G() if self.over == "trajectories" else scores_N
            credits.append(Credit.per_step(group, standardize(scores_N, pool, self.std, self.delta)))
        credit_T = np.concatenate([np.zeros(0), *(credit.tokens_T for credit in credits)])
        return Explained(credits, {"episode_credit_magnitude": float(np.abs(credit_T).mean()) if len(credit_T) else 0.0})


@dataclass(frozen=True)
class LeaveOneOut(CreditTerm):
    """RLOO:  A = R − mean of the other trajectories' R, plus the step's local reward. A group of one gets zeros."""

    def __call__(
        self, groups: Groups, rewards: Sequence[Rewards], policy: Policy | None = None, info: IterationInfo | None = None
    ) -> list[Credit]:
        credits = []
        for group, reward in zip(groups, rewards, strict=True):
            if len(group) < 2:
                credits.append(Credit.zeros(group))
                continue
            advantages_G = leave_one_out(reward.outcomes_G())
            credits.append(Credit.per_step(group, advantages_G[group.trajectory_of_step] + reward.local_N))
        return credits


@dataclass(frozen=True)
class BatchRelative(CreditTerm):
    """REINFORCE++:  Aₜ = R − β Σ_{u≥t} (log π − log π_ref)ᵤ over the tokens u of the step, standardized over all tokens of the
    batch. `baseline="group"` first subtracts the group's mean outcome (REINFORCE++-baseline). Zeros if the batch has no spread.
    """

    kl: float = 0.01
    baseline: Literal["none", "group"] = "none"
    temperature: float = 1.0
    delta: float = 1e-6
    compares_groups: ClassVar[bool] = True

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({SCORING, REFERENCE}) if self.kl else frozenset()

    @property
    def compares_episodes(self) -> bool:
        return self.baseline == "group"

    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo | None = None
    ) -> list[Credit]:
        if not groups:
            return []
        kl_T = self._kl_to_go(groups, policy)
        scores = []
        for group, reward in zip(groups, rewards, strict=True):
            scores_N = step_scores(reward)
            if self.baseline == "group" and len(group):
                scores_N = scores_N - reward.outcomes_G().mean()
            scores.append(np.repeat(scores_N, group.tokens_per_step))
        tokens_T = np.concatenate(scores) - self.kl * kl_T
        tokens_T = standardize(tokens_T, tokens_T, "population", self.delta)
        ends = np.cumsum([g.tokens_per_step.sum() for g in groups])[:-1].astype(int)
        return [Credit(g, own_T) for g, own_T in zip(groups, np.split(tokens_T, ends), strict=True)]

    def _kl_to_go(self, groups: Sequence[Group], policy: Policy) -> np.ndarray:
        """[T] Σ_{u≥t} (log π − log π_ref)ᵤ over the rest of each token's step. Zeros without a forward pass if β = 0."""
        steps = flat_steps(groups)
        if self.kl == 0.0 or not steps:
            return np.zeros(sum(len(s.completion.tokens) for s in steps))
        reference = policy.reference().logprobs(
            [s.prompt_tokens for s in steps], [s.completion.tokens for s in steps], self.temperature
        )
        log_ratios = [s.completion.logprobs - r for s, r in zip(steps, reference, strict=True)]
        return np.concatenate([np.cumsum(k[::-1])[::-1] for k in log_ratios])


def step_scores(reward: Rewards) -> np.ndarray:
    """[N] outcome of each step's trajectory plus the step's local reward."""
    return reward.outcomes_G()[reward.group.trajectory_of_step] + reward.local_N


def within_conditions(term: CreditTerm) -> CreditTerm:
    """The term, applied within each condition. A term that compares no episodes is returned unchanged."""
    if term.compares_groups:
        raise TacitError(
            f"advantage = split does not work with {type(term).__name__}, which compares episodes across the whole batch; use "
            "--advantage joint."
        )
    return WithinConditions(term) if term.compares_episodes else term


@dataclass(frozen=True)
class WithinConditions(CreditTerm):
    """Another credit term, applied to the episodes of each condition as if they were a group. No effect with one condition.

    Â_c = (r − mean_c r) / (std_c r + δ)          c: with an entry, without

    Guided episodes earn higher rewards. A joint baseline gives them positive and unguided episodes negative advantages, and
    training collapses (Figure 3c). The same holds for steps, so step-level credit is also split.
    """

    term: CreditTerm

    @property
    def needs(self) -> frozenset[str]:
        return self.term.needs

    def __call__(self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo) -> Explained:
        halves, half_rewards, origins = [], [], []
        for g, (group, reward) in enumerate(zip(groups, rewards, strict=True)):
            for name in dict.fromkeys(t.condition.name for t in group.trajectories):
                members = np.array([t.condition.name == name for t in group.trajectories])
                steps = members[group.trajectory_of_step]
                half = Group(group.task, tuple(t for t, own in zip(group.trajectories, members, strict=True) if own))
                halves.append(half)
                half_rewards.append(Rewards(half, reward.flow_N[steps], reward.local_N[steps]))
                origins.append((g, steps))
        credited = self.term(halves, half_rewards, policy, info)
        totals = [Credit.zeros(group).tokens_T for group in groups]
        for (g, steps), credit in zip(origins, credited, strict=True):
            totals[g][np.repeat(steps, groups[g].tokens_per_step)] = credit.tokens_T
        credits = [Credit(group, tokens_T) for group, tokens_T in zip(groups, totals, strict=True)]
        if not isinstance(credited, Explained):
            return Explained(credits)
        return Explained(credits, credited.metrics, _merge_marks(groups, origins, credited.marks))


Marks = Mapping[str, Sequence[Any] | np.ndarray]


def _merge_marks(groups: Sequence[Group], origins: Sequence[tuple[int, np.ndarray]], marks: Sequence[Marks]) -> list[Marks]:
    """Marks of the halves in the order of the group's steps; cluster labels (`part`) are renumbered to stay distinct."""
    merged: list[dict[str, np.ndarray]] = [{} for _ in groups]
    for (g, steps), noted in zip(origins, marks, strict=False):  # a term may have no marks
        for name, column in noted.items():
            whole_N = merged[g].setdefault(name, np.full(len(steps), None))
            values = column.tolist() if isinstance(column, np.ndarray) else list(column)
            if name == "part":
                offset = 1 + max((label for label in whole_N if label is not None), default=-1)
                values = [label + offset if label >= 0 else label for label in values]
            for n, value in zip(np.flatnonzero(steps), values, strict=True):
                whole_N[n] = value
    return [{name: whole_N.tolist() for name, whole_N in columns.items()} for columns in merged]


# Discounted returns: value targets, standardized step returns, generalized advantage estimation.


@dataclass(frozen=True)
class Returns(Column):
    """Rₜ = rₜ + γ Rₜ₊₁ of every step: the target of the value head."""

    gamma: float = 0.99
    name: ClassVar[str] = "returns"
    per: ClassVar[Literal["token", "row"]] = "row"

    def __call__(
        self, groups: Groups, rewards: Sequence[Rewards], policy: Policy | None = None, info: IterationInfo | None = None
    ) -> np.ndarray:
        return np.concatenate([reward.returns_N(self.gamma) for reward in rewards]) if rewards else np.zeros(0)


@dataclass(frozen=True)
class StepReturns(CreditTerm):
    """Aₜ = (Gₜ − mean G) / (std G + δ),  Gₜ = Σ_{u≥t} γ^{u−t} rᵤ      over all steps of the group (constant context, Eq. 8)

    `std=None` only subtracts the mean. Zeros if the group has one step, or no spread. A group of one episode still gets credit,
    because its steps are compared with each other.
    """

    gamma: float = 0.98
    std: Std = "population"
    delta: float = 1e-6

    def __call__(
        self, groups: Groups, rewards: Sequence[Rewards], policy: Policy | None = None, info: IterationInfo | None = None
    ) -> list[Credit]:
        credits = []
        for group, reward in zip(groups, rewards, strict=True):
            returns_N = reward.returns_N(self.gamma)
            credits.append(Credit.per_step(group, standardize(returns_N, returns_N, self.std, self.delta)))
        return credits


def gae(rewards_T: np.ndarray, values_T: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """δₜ = rₜ + γ V(sₜ₊₁) − V(sₜ),  Aₜ = δₜ + γλ Aₜ₊₁      V after the last turn is 0

    [T] advantages of one trajectory with T turns. λ = 1 is return minus value, λ = 0 the one-step error.
    """
    advantages_T = np.zeros(len(rewards_T))
    next_advantage, next_value = 0.0, 0.0
    for t in range(len(rewards_T) - 1, -1, -1):
        next_advantage = rewards_T[t] + gamma * next_value - values_T[t] + gamma * lam * next_advantage
        next_value = values_T[t]
        advantages_T[t] = next_advantage
    return advantages_T


@dataclass(frozen=True)
class GeneralizedAdvantage(CreditTerm):
    """GAE over turns: the state is a prompt, the action a completion. `whiten` standardizes over the steps of the batch.

    A step's local reward (the invalid-action penalty) is added to its own Aₜ only.
    """

    gamma: float = 0.99
    lam: float = 0.95
    whiten: bool = True
    needs: ClassVar[frozenset[str]] = frozenset({VALUES})
    compares_episodes: ClassVar[bool] = False

    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Critic, info: IterationInfo | None = None
    ) -> list[Credit]:
        if not groups:
            return []
        values_N = policy.values([step.prompt_tokens for step in flat_steps(groups)])
        flow_N = np.concatenate([r.flow_N for r in rewards])
        advantages_N = np.concatenate([r.local_N for r in rewards])
        start = 0
        for length in (n for group in groups for n in group.lengths):
            episode = slice(start, start + length)
            advantages_N[episode] += gae(flow_N[episode], values_N[episode], self.gamma, self.lam)
            start += length
        if self.whiten and len(advantages_N) > 1:
            advantages_N = (advantages_N - advantages_N.mean()) / (advantages_N.std() + 1e-8)
        ends = np.cumsum([len(g.steps) for g in groups])[:-1].astype(int)
        return [Credit.per_step(g, a) for g, a in zip(groups, np.split(advantages_N, ends), strict=True)]
