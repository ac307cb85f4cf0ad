"""REINFORCE++ (Hu et al., 2025): no group baseline, one normalisation over the whole batch, KL inside the reward.

    Aₜ = (Rₜ − mean) / (std + δ),   Rₜ = R − β Σ_{u≥t} (log π − log π_ref)ᵤ       mean and std over all tokens of the batch

What differs from GRPO: the pool that is standardised over, and where the KL enters. `baseline = group` first subtracts the
group's mean outcome (the paper's REINFORCE++-baseline).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from tacit.core.composition import Part, replaces
from tacit.core.tools import Tools
from tacit.core.world import Environment
from tacit.credit.episode import BatchRelative
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class ReinforcePP(GRPO):
    """REINFORCE with advantages standardised over the whole batch."""

    name: ClassVar[str] = "reinforce_pp"

    baseline: Literal["none", "group"] = "none"
    """subtract the group's mean outcome first"""

    def changes(self, world: Environment, tools: Tools) -> Sequence[Part]:
        credit = BatchRelative(self.kl, self.baseline, self.schedule.temperature)
        return (
            replaces("credits", "episode credit", credit),
            replaces("columns", "reference"),  # the KL is in the credit
            replaces("losses", "KL"),
        )
