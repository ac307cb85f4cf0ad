"""GiGPO (Feng et al., 2025): step-level credit among steps with the same observation; and HGPO, below.

    A = A_episode + w · (Rₜ − mean_C R) / (std_C R + δ),     Rₜ = rₜ + γ Rₜ₊₁

C: the steps of the group's episodes with exactly the same observation. What differs from GRPO: the second term, which is 0
for a step alone in its C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from tacit.core.bounds import Bound, NotNegative, Share
from tacit.core.errors import TacitError
from tacit.core.method import Part, Resources, adds, replaces
from tacit.core.world import Environment
from tacit.credit.partitions import Key, Partition, SameKey, SimilarObservation
from tacit.credit.step_relative import HistoryHierarchy, StepRelative
from tacit.methods.grpo import GRPO

Similarity = Annotated[float, Bound(lambda v: 0 < v <= 1, "must be above 0 and at most 1 (1: observations must be equal)")]


@dataclass(frozen=True)
class GiGPO(GRPO):
    """GRPO with step-level credit among steps with the same observation."""

    name: ClassVar[str] = "gigpo"

    gamma: Share = 0.95
    """discount per turn of the step returns"""
    step_weight: NotNegative = 1.0
    """w of the step-level credit; 0 is GRPO"""
    step_std: Literal["population", "sample", "none"] = "population"
    """divide step-level credit by the standard deviation of C: population, sample (as in verl-agent), or none"""
    key: Key = "observation"
    """text that steps must share: the observation, the state (state block and observation), or the whole prompt"""
    similarity: Similarity = 1.0
    """difflib ratio at which observations count as the same; 1: equal; 0.9 suits worlds whose observations never repeat"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        if self.similarity < 1.0 and self.key != "observation":
            raise TacitError(f"similarity = {self.similarity} compares observations, not key = {self.key}. Remove one of them.")
        same: Partition = SameKey(self.key) if self.similarity == 1.0 else SimilarObservation(self.similarity)
        std = None if self.step_std == "none" else self.step_std
        return (adds("credits", "step credit", StepRelative(same, self.step_weight, self.gamma, std)),)


@dataclass(frozen=True)
class HGPO(GRPO):
    """Step-level credit in a hierarchy of longer and longer shared histories.

    A = Σ_k w_k a^(k) / Σ_k w_k,     w_k = (k + 1)^α,     a^(k) = (Rₜ − mean R) / (std R + δ)

    HGPO (He et al., 2026). a^(k): among the steps with equal last k observations, k = 1 … history + 1. Depths without peers
    drop out of both sums.

    What differs from GRPO: the credit. As released, there is no episode-level term unless `base = true` adds it (k = 0).
    """

    name: ClassVar[str] = "hgpo"

    gamma: Share = 0.95
    """discount per turn of the step returns"""
    alpha: float = 1.0
    """weight of depth k: (k + 1)^alpha"""
    key: Key = "observation"
    """text that steps must share: the observation, the state (state block and observation), or the whole prompt"""
    base: bool = False
    """add the episode-level advantage as depth 0"""
    step_std: Literal["population", "sample", "none"] = "population"
    """divide step-level credit by the standard deviation of its peers: population, sample, or none"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        turns = self.prompt.past_turns(world)
        depth = None if turns is None else turns + 1
        std = None if self.step_std == "none" else self.step_std
        return (
            replaces("credits", "episode credit"),  # `base` adds it to the hierarchy
            adds("credits", "step credit", HistoryHierarchy(depth, self.alpha, self.base, self.gamma, std, key=self.key)),
        )
