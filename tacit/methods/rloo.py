"""RLOO: REINFORCE with a leave-one-out baseline (Ahmadian et al., 2024).

    Aᵢ = Rᵢ − mean_{j≠i} Rⱼ

What differs from GRPO: the baseline leaves the trajectory itself out, and nothing is divided by a standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tacit.core.composition import Part, replaces
from tacit.core.tools import Tools
from tacit.core.world import Environment
from tacit.credit.episode import LeaveOneOut
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class RLOO(GRPO):
    """REINFORCE with the mean of the other episodes as baseline."""

    name: ClassVar[str] = "rloo"

    def changes(self, world: Environment, tools: Tools) -> Sequence[Part]:
        return (replaces("credits", "episode credit", LeaveOneOut()),)
