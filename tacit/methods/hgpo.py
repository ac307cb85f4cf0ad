"""HGPO (He et al., 2026): the same observation, after the same history, compares best.

    A = Σ_k w_k a^(k) / Σ_k w_k,     w_k = (k + 1)^α,     a^(k) = (Rₜ − mean R) / (std R + δ)

a^(k) is taken among the steps whose last k observations are equal, k = 1 … history + 1; depths without peers drop out. What
differs from GRPO: the credit. As in the released code there is no episode-level term unless `base` is on (as depth k = 0).
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
    """Step-level credit in a hierarchy of ever longer shared histories."""

    name: ClassVar[str] = "hgpo"

    gamma: Share = 0.95
    """discount per turn of the step returns"""
    alpha: float = 1.0
    """how much deeper levels of shared history weigh: (k + 1)^alpha"""
    key: Key = "observation"
    """by what steps are the same: the observation, the state (block and observation as they are told), or the whole prompt"""
    base: bool = False
    """add the episode-level advantage as the shallowest level"""
    step_std: Literal["population", "sample", "none"] = "population"
    """divide step-level credit by the deviation of its peers"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        depth = None if self.prompt.history < 0 else self.prompt.history + 1
        std = None if self.step_std == "none" else self.step_std
        return (
            replaces("credits", "episode credit"),  # it is the shallowest level of the hierarchy, or not there
            adds("credits", "step credit", HistoryHierarchy(depth, self.alpha, self.base, self.gamma, std, key=self.key)),
        )
