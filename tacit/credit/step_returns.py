"""Credit by step return: what followed a step, against what followed every step of the group (constant context, Eq. 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.core.credit import Credit, Rewards
from tacit.core.moment import Moment
from tacit.core.protocols import Policy
from tacit.core.types import Group
from tacit.credit.episode import Std, standardise


@dataclass(frozen=True)
class StepReturns:
    """Aₜ = (Gₜ − mean G) / (std G + δ) with Gₜ = Σ_{u≥t} γ^{u−t} rᵤ; mean and std over all steps of the group's episodes.

    `std=None` only subtracts the mean. Zeros where there is one step in all, or no spread. One episode alone is still compared
    with itself: its steps are many, and its early steps differ from its late ones.
    """

    gamma: float = 0.98
    std: Std = "population"
    delta: float = 1e-6

    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy | None = None, moment: Moment | None = None
    ) -> list[Credit]:
        credits = []
        for group, reward in zip(groups, rewards, strict=True):
            returns_N = reward.returns_N(self.gamma)
            credits.append(Credit.per_step(group, standardise(returns_N, returns_N, self.std, self.delta)))
        return credits
