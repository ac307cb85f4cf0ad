"""Discounted step returns, as a column for losses that regress on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.method import Column, CreditTerm
from tacit.core.protocols import VALUES, Critic, Policy
from tacit.core.types import Group, IterationInfo, flat_steps
from tacit.credit.episode import Std, standardize


@dataclass(frozen=True)
class Returns(Column):
    """Rₜ = rₜ + γ Rₜ₊₁ for every step: what a value head is taught."""

    gamma: float = 0.99
    name: ClassVar[str] = "returns"
    per: ClassVar[Literal["token", "row"]] = "row"

    def __call__(
        self,
        groups: Sequence[Group],
        rewards: Sequence[Rewards],
        policy: Policy | None = None,
        info: IterationInfo | None = None,
    ) -> np.ndarray:
        return np.concatenate([reward.returns_N(self.gamma) for reward in rewards]) if rewards else np.zeros(0)


# Credit by step return: what followed a step, against what followed every step of the group (constant context, Eq. 8).


@dataclass(frozen=True)
class StepReturns(CreditTerm):
    """Aₜ = (Gₜ − mean G) / (std G + δ) with Gₜ = Σ_{u≥t} γ^{u−t} rᵤ; mean and std over all steps of the group's episodes.

    `std=None` only subtracts the mean. Zeros where there is one step in all, or no spread. One episode alone is still compared
    with itself: its steps are many, and its early steps differ from its late ones.
    """

    gamma: float = 0.98
    std: Std = "population"
    delta: float = 1e-6

    def __call__(
        self,
        groups: Sequence[Group],
        rewards: Sequence[Rewards],
        policy: Policy | None = None,
        info: IterationInfo | None = None,
    ) -> list[Credit]:
        credits = []
        for group, reward in zip(groups, rewards, strict=True):
            returns_N = reward.returns_N(self.gamma)
            credits.append(Credit.per_step(group, standardize(returns_N, returns_N, self.std, self.delta)))
        return credits


# Generalised advantage estimation over turns: the state is a prompt, the action a completion.
#
# δₜ = rₜ + γ V(sₜ₊₁) − V(sₜ)          V after the last turn is 0
# Aₜ = δₜ + γλ Aₜ₊₁
#
# A step's local reward (the invalid-action penalty) is added to its own Aₜ and to no other, as in its return.
# The value head itself is taught the discounted return (credit/returns.py).


def gae(rewards_T: np.ndarray, values_T: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """Advantages of one trajectory. λ = 1 is return minus value; λ = 0 is the one-step error."""
    advantages_T = np.zeros(len(rewards_T))
    ahead, value_ahead = 0.0, 0.0
    for t in range(len(rewards_T) - 1, -1, -1):
        ahead = rewards_T[t] + gamma * value_ahead - values_T[t] + gamma * lam * ahead
        value_ahead = values_T[t]
        advantages_T[t] = ahead
    return advantages_T


@dataclass(frozen=True)
class GeneralizedAdvantage(CreditTerm):
    """PPO's credit, standardised over the steps of the batch unless `whiten` is off."""

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
