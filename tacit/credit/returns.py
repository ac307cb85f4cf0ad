"""Credit and columns from discounted returns: value targets, standardized step returns, generalized advantage estimation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.method import Column, CreditTerm
from tacit.core.protocols import VALUES, Critic, Policy
from tacit.core.types import Group, Groups, IterationInfo, flat_steps
from tacit.credit.episode import Std, standardize


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
