"""RLSD: self-distilled RL with verifiable rewards (Yang et al., 2026).

    A_token = A_ep · ((1 − l) + l · clip(exp(sign(A_ep) · Δ), 1 − ε, 1 + ε)),   Δ = log π(a | H(h, s)) − log π(a | h)

The outcome decides the direction, the self-teacher the size; l falls linearly to 0. What differs from GRPO: the episode's
credit is modulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tacit.companions.hindsight.handbook import handbook_of
from tacit.core.bounds import AtLeastOne, Share
from tacit.core.composition import Part, replaces
from tacit.core.tools import Tools
from tacit.core.world import Environment
from tacit.credit.episode import EpisodeRelative
from tacit.credit.modulated import Modulated
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class RLSD(GRPO):
    """GRPO whose credit is larger where the policy with a skill in its prompt agrees."""

    name: ClassVar[str] = "rlsd"

    handbook: str = ""
    """file of skills by family (TOML); empty: the world's own"""
    modulation: Share = 0.5
    """l at the start: how much of the credit the teacher may change"""
    modulation_bound: Share = 0.2
    """ε: by how much at the most"""
    modulation_iterations: AtLeastOne = 100
    """iterations after which l is 0"""

    def changes(self, world: Environment, tools: Tools) -> Sequence[Part]:
        episode = EpisodeRelative(None if self.std == "none" else self.std, self.over)
        teacher = handbook_of(world, self.handbook)
        credit = Modulated(episode, teacher, self.modulation, self.modulation_bound, self.modulation_iterations)
        return (replaces("credits", "episode credit", credit),)
