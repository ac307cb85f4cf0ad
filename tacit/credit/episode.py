"""Credit by episode: every token of a trajectory gets what the trajectory was worth against its group or its batch.

A step's own score is its trajectory's outcome plus the step's local reward (the invalid-action penalty), so that a bad turn
in a good episode gets a little less, and no other turn is blamed for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.method import CreditTerm, Explained
from tacit.core.protocols import REFERENCE, SCORING, Policy
from tacit.core.types import Group, IterationInfo, flat_steps

Std = Literal["population", "sample"] | None


def standardize(values: np.ndarray, pool: np.ndarray, std: Std = "population", delta: float = 1e-6) -> np.ndarray:
    """A = (values − mean pool) / (std pool + δ); `std=None` only subtracts the mean.

    Zeros where the pool has one member or no spread: there is nothing to compare with.
    """
    if len(pool) < 2 or np.ptp(pool) == 0.0:
        return np.zeros_like(values, dtype=np.float64)
    centred = values - pool.mean()
    if std is None:
        return centred
    return centred / (pool.std(ddof=1 if std == "sample" else 0) + delta)


def leave_one_out(values: np.ndarray) -> np.ndarray:
    """Aᵢ = Rᵢ − mean_{j≠i} Rⱼ = n/(n−1) · (Rᵢ − mean R). One member alone gets zero."""
    n = len(values)
    return np.zeros_like(values, dtype=np.float64) if n < 2 else (values - values.mean()) * (n / (n - 1))


@dataclass(frozen=True)
class EpisodeRelative(CreditTerm):
    """GRPO:  A = (score − mean R) / (std R + δ) over the trajectories of the group.

    `over="steps"` takes the statistics over all steps, so long trajectories weigh more (what verl-agent's code does).
    `std=None` is Dr. GRPO. One member alone gets zeros. `episode_credit_magnitude` is the mean of |A| over all tokens.
    """

    std: Std = "population"
    over: Literal["trajectories", "steps"] = "trajectories"
    delta: float = 1e-6

    def __call__(
        self,
        groups: Sequence[Group],
        rewards: Sequence[Rewards],
        policy: Policy | None = None,
        info: IterationInfo | None = None,
    ) -> Explained:
        credits = []
        for group, reward in zip(groups, rewards, strict=True):
            if len(group) < 2:
                credits.append(Credit.zeros(group))
                continue
            scores_N = step_scores(reward)
            pool = reward.outcomes_G() if self.over == "trajectories" else scores_N
            credits.append(Credit.per_step(group, standardize(scores_N, pool, self.std, self.delta)))
        given_T = np.concatenate([np.zeros(0), *(credit.tokens_T for credit in credits)])
        return Explained(credits, {"episode_credit_magnitude": float(np.abs(given_T).mean()) if len(given_T) else 0.0})


@dataclass(frozen=True)
class LeaveOneOut(CreditTerm):
    """RLOO:  A = R − mean of the other trajectories' R, plus the step's local reward. One member alone gets zero."""

    def __call__(
        self,
        groups: Sequence[Group],
        rewards: Sequence[Rewards],
        policy: Policy | None = None,
        info: IterationInfo | None = None,
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
    """REINFORCE++:  Aₜ = R − β Σ_{u≥t} (log π − log π_ref)ᵤ over the tokens u of the step, standardised over all tokens of the
    batch. `baseline="group"` first subtracts the group's mean outcome (REINFORCE++-baseline).

    Zeros where the whole batch has no spread.
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
        kl = self._kl(groups, policy)
        raw = []
        for group, reward in zip(groups, rewards, strict=True):
            scores_N = step_scores(reward)
            if self.baseline == "group" and len(group):
                scores_N = scores_N - reward.outcomes_G().mean()
            raw.append(np.repeat(scores_N, group.tokens_per_step))
        tokens_T = np.concatenate(raw) - self.kl * kl
        tokens_T = standardize(tokens_T, tokens_T, "population", self.delta)
        ends = np.cumsum([g.tokens_per_step.sum() for g in groups])[:-1].astype(int)
        return [Credit(g, part) for g, part in zip(groups, np.split(tokens_T, ends), strict=True)]

    def _kl(self, groups: Sequence[Group], policy: Policy) -> np.ndarray:
        """Σ_{u≥t} (log π − log π_ref)ᵤ for every token of the batch; no pass is made where β = 0."""
        steps = flat_steps(groups)
        if self.kl == 0.0 or not steps:
            return np.zeros(sum(len(s.completion.tokens) for s in steps))
        reference = policy.reference().logprobs(
            [s.prompt_tokens for s in steps], [s.completion.tokens for s in steps], self.temperature
        )
        ratios = [s.completion.logprobs - r for s, r in zip(steps, reference, strict=True)]
        return np.concatenate([np.cumsum(k[::-1])[::-1] for k in ratios])


def step_scores(reward: Rewards) -> np.ndarray:
    """[N] the outcome of each step's trajectory plus the step's own local reward."""
    return reward.outcomes_G()[reward.group.trajectory_of_step] + reward.local_N
