"""RLOO: REINFORCE with a leave-one-out baseline (Ahmadian et al., 2024).

    Aᵢ = Rᵢ − mean_{j≠i} Rⱼ

What differs from GRPO: the baseline leaves the trajectory itself out, and nothing is divided by a standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tacit.core.method import CreditTerm
from tacit.credit.episode import LeaveOneOut
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class RLOO(GRPO):
    """REINFORCE with the mean of the other episodes as baseline."""

    name: ClassVar[str] = "rloo"

    def credits(self) -> tuple[CreditTerm, ...]:
        return (LeaveOneOut(),)
