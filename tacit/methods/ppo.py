"""PPO (Schulman et al., 2017) over turns: a value head on the policy judges each prompt.

    δₜ = rₜ + γ V(sₜ₊₁) − V(sₜ),   Aₜ = δₜ + γλ Aₜ₊₁
    L  = clipped surrogate + c E[(V(sₜ) − Rₜ)²] + β KL

What differs from GRPO: the baseline is learned, so episodes need no group; the credit differs from turn to turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tacit.core.method import Column, CreditTerm
from tacit.core.protocols import LossTerm
from tacit.credit.gae import GeneralisedAdvantage
from tacit.credit.returns import Returns
from tacit.losses.value import ValueLoss
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class PPO(GRPO):
    """Actor-critic with generalised advantage estimation over turns."""

    name: ClassVar[str] = "ppo"

    success_reward: float = 1.0
    """what success is worth; the value head shares the policy's weights and gradient clip, and at 10 its squared error would
    drown the policy's gradient"""
    invalid_penalty: float = 0.01
    """taken off a step whose completion does not parse into an action"""
    gamma: float = 0.99
    """discount per turn"""
    lam: float = 0.95
    """λ of the advantage estimate; 1 is return minus value"""
    value_coefficient: float = 0.5
    """weight of the value loss"""

    def credits(self) -> tuple[CreditTerm, ...]:
        return (GeneralisedAdvantage(self.gamma, self.lam),)

    def columns(self) -> tuple[Column, ...]:
        return (*super().columns(), Returns(self.gamma))

    def losses(self) -> tuple[LossTerm, ...]:
        return (*super().losses(), ValueLoss(self.value_coefficient))
