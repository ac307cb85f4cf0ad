"""ReuseRL: skill reuse as compression (Xu et al., 2026).

    s = φ(τ)                                        the trajectory as a sequence of skills of the world's alphabet
    seg(s, C)                                       fewest phrases of the dictionary C that concatenate to s
    L_dict(C)   = Σ_p (|p| log₂ K + log₂ L)                                                              Eq. 2
    L_BDL(B, C) = L_dict(C) / |B| + mean over B of seg(s, C) log₂ |C|                                    Eq. 3
    C(B⁺)       ≈ argmin L_BDL(B⁺, C)               E-step: greedy merging over successes and buffer     Eq. 4
    r(τ)        = R(τ) − λ 1{R(τ) = 1} seg(s, C(B⁺)) / T                                                 Eqs. 5–6

K: skills in the alphabet, L: longest phrase, B⁺: successes of the batch and the buffer, T: longest episode.

What differs from GRPO: successes pay a segmentation cost, and a dictionary is extracted during training. `buffer = 0` is the
variant without the global success buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from tacit.companions.dictionary import Dictionary, SkillDictionary
from tacit.core.bounds import AtLeastOne, Count, InnerShare, NotNegative
from tacit.core.method import Base, Part, Resources, Schedule, adds
from tacit.core.world import Environment
from tacit.methods.grpo import GRPO
from tacit.rewards.segmentation import SegmentationCost, world_alphabet, world_horizon


@dataclass(frozen=True)
class RoundLength(GRPO):
    """GRPO with a reward for short successes (ReuseRL §3.4, §4.4).

    r(τ) = R(τ) − λ 1{R(τ) = 1} |s| / T

    What differs from GRPO: this penalty. By Proposition 1 it is ReuseRL's cost with the dictionary of single skills Σ, for
    which seg(s, Σ) = |s|; so it is the same term with a fixed dictionary.
    """

    name: ClassVar[str] = "round_length"

    invalid_penalty: NotNegative = 0.01
    """penalty on a step whose completion does not parse into an action"""
    efficiency: NotNegative = 10.0
    """λ: cost of a success with T segments; in round_length, with T steps"""
    horizon: AtLeastOne | None = None
    """T of the cost; default: the world's step limit"""
    schedule: Schedule = field(default_factory=lambda: Schedule(iterations=300))

    def fit_to_model(self, base: Base, explicit: frozenset[str]) -> tuple[Self, tuple[str, ...]]:
        """Unless the user set it, λ is at most the success reward: no success may score below a failure."""
        settings, notes = super().fit_to_model(base, explicit)
        if "efficiency" in explicit or self.efficiency <= (most := self.success_reward):
            return settings, notes
        note = f"efficiency = {most:g}, so that no success scores below a failure"
        return replace(settings, efficiency=most), (*notes, note)

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        alphabet, horizon = world_alphabet(world, self.name), world_horizon(world, self.horizon)
        single_skills = Dictionary(alphabet.skills)
        return (adds("rewards", "length cost", SegmentationCost(alphabet, single_skills, horizon, self.efficiency)),)


@dataclass(frozen=True)
class ReuseRL(RoundLength):
    """GRPO with a reward for successes that consist of few reusable phrases."""

    name: ClassVar[str] = "reuserl"

    max_phrase: AtLeastOne = 4
    """L: most skills in a phrase"""
    buffer: Count = 256
    """past successes kept for extracting the dictionary; 0 uses only the batch"""
    delta: InnerShare = 0.05
    """failure probability of the reported bound"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        alphabet, horizon = world_alphabet(world, self.name), world_horizon(world, self.horizon)
        dictionary = SkillDictionary(alphabet, horizon, self.max_phrase, self.buffer, self.delta)
        cost = SegmentationCost(alphabet, dictionary, horizon, self.efficiency)
        return adds("rewards", "length cost", cost), adds("companions", "dictionary", dictionary)
