"""Discounted step returns, as a column for losses that regress on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.moment import Moment
from tacit.core.protocols import Policy
from tacit.core.types import Group


@dataclass(frozen=True)
class Returns:
    """Rₜ = rₜ + γ Rₜ₊₁ for every step: what a value head is taught."""

    gamma: float = 0.99
    name: ClassVar[str] = "returns"
    per: ClassVar[Literal["token", "row"]] = "row"

    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy | None = None, moment: Moment | None = None
    ) -> np.ndarray:
        return np.concatenate([reward.returns_N(self.gamma) for reward in rewards]) if rewards else np.zeros(0)
