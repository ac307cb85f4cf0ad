"""Pure round length: every step of a success costs the same (ReuseRL §3.4, §4.4).

    r(τ) = R(τ) − λ 1{R(τ) = 1} |s| / T

What differs from GRPO: this penalty. By Proposition 1 it is ReuseRL's segmentation cost under the dictionary of single skills,
seg(s, Σ) = |s|, and that is how it is written here: the same term with a code that never learns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tacit.companions.dictionary.segmentation import Dictionary
from tacit.core.method import RewardTerm, Schedule
from tacit.core.world import Environment
from tacit.methods.grpo import GRPO
from tacit.rewards.segmentation import SegmentationCost, world_alphabet, world_horizon


@dataclass(frozen=True)
class RoundLength(GRPO):
    """GRPO whose successes are worth more the shorter they are."""

    name: ClassVar[str] = "round_length"

    invalid_penalty: float = 0.01
    """taken off a step whose completion does not parse into an action"""
    efficiency: float = 10.0
    """λ: what a success of T steps loses"""
    horizon: int | None = None
    """T of the length penalty; by default the world's step limit"""
    schedule: Schedule = field(default_factory=lambda: Schedule(iterations=300))

    def rewards(self, world: Environment) -> tuple[RewardTerm, ...]:
        alphabet = world_alphabet(world, self.name)
        single_skills = Dictionary(alphabet.skills)
        return (
            *super().rewards(world),
            SegmentationCost(alphabet, single_skills, world_horizon(world, self.horizon), self.efficiency),
        )
