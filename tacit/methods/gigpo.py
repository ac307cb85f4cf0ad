"""GiGPO (Feng et al., 2025): steps that saw the same thing are compared with one another.

    A = A_episode + w · (Rₜ − mean_C R) / (std_C R + δ),     Rₜ = rₜ + γ Rₜ₊₁

C are the steps of the group's episodes with exactly the same observation. What differs from GRPO: the second term. A step that
nobody else saw gets nothing from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from tacit.core.bounds import Bound, NotNegative, Share
from tacit.core.composition import Part, adds
from tacit.core.errors import TacitError
from tacit.core.resources import Resources
from tacit.core.world import Environment
from tacit.credit.embedders import Key
from tacit.credit.partitions import Partition, SameKey, SimilarObservation
from tacit.credit.step_relative import StepRelative
from tacit.methods.grpo import GRPO

Similarity = Annotated[float, Bound(lambda v: 0 < v <= 1, "must be above 0 and at most 1, where observations must be equal")]


@dataclass(frozen=True)
class GiGPO(GRPO):
    """GRPO with step-level credit among steps that saw the same observation."""

    name: ClassVar[str] = "gigpo"

    gamma: Share = 0.95
    """discount per turn of the step returns"""
    step_weight: NotNegative = 1.0
    """w of the step-level credit; 0 is GRPO"""
    step_std: Literal["population", "sample", "none"] = "population"
    """divide step-level credit by the deviation of its peers: population, sample (as verl-agent's code), or none (mean only)"""
    key: Key = "observation"
    """by what steps are the same: the observation, the state (block and observation as they are told), or the whole prompt"""
    similarity: Similarity = 1.0
    """observations this alike (difflib ratio) count as the same; 1 means equal, worlds that never repeat use 0.9"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        if self.similarity < 1.0 and self.key != "observation":
            raise TacitError(f"similarity = {self.similarity} compares observations; leave key = {self.key} out, or it.")
        same: Partition = SameKey(self.key) if self.similarity == 1.0 else SimilarObservation(self.similarity)
        std = None if self.step_std == "none" else self.step_std
        return (adds("credits", "step credit", StepRelative(same, self.step_weight, self.gamma, std)),)
