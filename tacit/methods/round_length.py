"""Pure round length: every step of a success costs the same (ReuseRL §3.4, §4.4).

    r(τ) = R(τ) − λ 1{R(τ) = 1} |s| / T

What differs from GRPO: this penalty. By Proposition 1 it is ReuseRL's segmentation cost under the dictionary of single skills,
seg(s, Σ) = |s|, and that is how it is written here: the same term with a code that never learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from tacit.companions.dictionary.segmentation import Dictionary
from tacit.core.bounds import NotNegative
from tacit.core.composition import Part, adds
from tacit.core.method import Schedule
from tacit.core.tools import Base, Tools
from tacit.core.world import Environment
from tacit.methods.grpo import GRPO
from tacit.rewards.segmentation import SegmentationCost, affordable, world_alphabet, world_horizon


@dataclass(frozen=True)
class RoundLength(GRPO):
    """GRPO whose successes are worth more the shorter they are."""

    name: ClassVar[str] = "round_length"

    invalid_penalty: NotNegative = 0.01
    """taken off a step whose completion does not parse into an action"""
    efficiency: float = 10.0
    """λ: what a success of T steps loses"""
    horizon: int | None = None
    """T of the length penalty; by default the world's step limit"""
    schedule: Schedule = field(default_factory=lambda: Schedule(iterations=300))

    def fitted(self, base: Base, said: frozenset[str]) -> tuple[Self, tuple[str, ...]]:
        settings, notes = super().fitted(base, said)
        efficiency, note = affordable(self.efficiency, self.success_reward, said)
        return replace(settings, efficiency=efficiency), (*notes, *note)

    def changes(self, world: Environment, tools: Tools) -> Sequence[Part]:
        alphabet, horizon = world_alphabet(world, self.name), world_horizon(world, self.horizon)
        single_skills = Dictionary(alphabet.skills)
        return (adds("rewards", "length cost", SegmentationCost(alphabet, single_skills, horizon, self.efficiency)),)
