"""HGPO (He et al., 2026): step-level credit among steps with the same recent observations.

    A = Σ_k w_k a^(k) / Σ_k w_k,     w_k = (k + 1)^α,     a^(k) = (Rₜ − mean R) / (std R + δ)

a^(k): among the steps with equal last k observations, k = 1 … history + 1. Depths without peers drop out of both sums.

What differs from GRPO: the credit. As released, there is no episode-level term unless `base = true` adds it (k = 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from tacit.core.bounds import Share
from tacit.core.composition import Part, adds, replaces
from tacit.core.resources import Resources
from tacit.core.world import Environment
from tacit.credit.embedders import Key
from tacit.credit.hgpo import HistoryHierarchy
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class HGPO(GRPO):
    """Step-level credit in a hierarchy of longer and longer shared histories."""

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
