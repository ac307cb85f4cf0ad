"""CISPO (Chen et al., 2025): clip the weight, not the gradient.

    L = −E[sg(clip(ρ, 1 − ε_low, 1 + ε_high)) · A · log π]

What differs from GRPO: the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tacit.core.bounds import NotNegative
from tacit.core.composition import Part, replaces
from tacit.core.tools import Tools
from tacit.core.world import Environment
from tacit.losses.cispo import ClippedWeight
from tacit.methods.grpo import GRPO, ClipHigh, ClipLow


@dataclass(frozen=True)
class CISPO(GRPO):
    """GRPO's credit with clipped importance weights, so that no token's gradient is lost."""

    name: ClassVar[str] = "cispo"
    leads: ClassVar[bool] = True

    clip_low: ClipLow = 1.0
    """ε below 1; 1 leaves the weight unbounded below, as published"""
    clip_high: ClipHigh = 0.2
    """ε above 1"""
    kl: NotNegative = 0.0
    """β of the KL to the reference policy; 0 leaves it out"""

    def changes(self, world: Environment, tools: Tools) -> Sequence[Part]:
        return (replaces("losses", "surrogate", ClippedWeight(self.clip_low, self.clip_high)),)
