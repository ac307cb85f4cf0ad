"""DAPO (Yu et al., 2025): room to explore, and no step wasted on groups that agree.

    clip-higher        ε_low = 0.2, ε_high = 0.28
    dynamic sampling   groups that all succeed or all fail carry no signal; roll out other tasks until enough do not
    no KL, loss averaged over tokens (as GRPO here already is)

What differs from GRPO: those three lines. Overlong-reward shaping is left out: our completions end at an action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tacit.core.bounds import AtLeastOne, NotNegative
from tacit.core.composition import Part, adds, replaces
from tacit.core.tools import Tools
from tacit.core.world import Environment
from tacit.losses.clipped import ClippedSurrogate
from tacit.methods.grpo import GRPO, ClipHigh
from tacit.rollout.selection import Mixed


@dataclass(frozen=True)
class DAPO(GRPO):
    """GRPO with clip-higher and dynamic sampling, without KL."""

    name: ClassVar[str] = "dapo"

    clip_high: ClipHigh = 0.28
    """ε above 1"""
    kl: NotNegative = 0.0
    """β of the KL to the reference policy; 0 leaves it out"""
    rounds: AtLeastOne = 10
    """rollout rounds to look for groups that disagree, before training on what there is"""

    def changes(self, world: Environment, tools: Tools) -> Sequence[Part]:
        return (
            adds("selection", "selection", Mixed(self.rounds)),
            replaces("losses", "surrogate", ClippedSurrogate(self.clip_low, self.clip_high)),
        )
