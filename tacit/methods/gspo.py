"""GSPO (Zheng et al., 2025): the importance ratio belongs to the sequence, not to the token.

    ρ = (π(y|x) / π_old(y|x))^(1/|y|),   clipped to [1 − 3e-4, 1 + 4e-4],   every sequence weighs the same

What differs from GRPO: the ratio, its (far smaller) clip range, and the mean over rows. A sequence is one step's completion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tacit.core.protocols import LossTerm
from tacit.losses.clipped import ClippedSurrogate
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class GSPO(GRPO):
    """GRPO with a length-normalised ratio per completion."""

    name: ClassVar[str] = "gspo"

    clip_low: float = 3e-4
    """ε below 1"""
    clip_high: float = 4e-4
    """ε above 1"""
    kl: float = 0.0
    """β of the KL to the reference policy; 0 leaves it out"""

    def surrogate(self) -> LossTerm:
        return ClippedSurrogate(self.clip_low, self.clip_high, ratio="sequence", over="rows")
