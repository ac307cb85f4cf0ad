"""GSPO (Zheng et al., 2025): the importance ratio belongs to the sequence, not to the token.

    ρ = (π(y|x) / π_old(y|x))^(1/|y|),   clipped to [1 − 3e-4, 1 + 4e-4],   every sequence weighs the same

What differs from GRPO: the ratio, its (far smaller) clip range, and the mean over rows. A sequence is one step's completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tacit.core.bounds import NotNegative
from tacit.core.composition import Part, replaces
from tacit.core.tools import Tools
from tacit.core.world import Environment
from tacit.losses.clipped import ClippedSurrogate
from tacit.methods.grpo import GRPO, ClipHigh, ClipLow


@dataclass(frozen=True)
class GSPO(GRPO):
    """GRPO with a length-normalised ratio per completion."""

    name: ClassVar[str] = "gspo"
    leads: ClassVar[bool] = True

    clip_low: ClipLow = 3e-4
    """ε below 1"""
    clip_high: ClipHigh = 4e-4
    """ε above 1"""
    kl: NotNegative = 0.0
    """β of the KL to the reference policy; 0 leaves it out"""

    def changes(self, world: Environment, tools: Tools) -> Sequence[Part]:
        surrogate = ClippedSurrogate(self.clip_low, self.clip_high, ratio="sequence", over="rows")
        return (replaces("losses", "surrogate", surrogate),)
