"""PPO (Schulman et al., 2017) over turns: a value head on the policy judges each prompt.

    δₜ = rₜ + γ V(sₜ₊₁) − V(sₜ),   Aₜ = δₜ + γλ Aₜ₊₁
    L  = clipped surrogate + c E[(V(sₜ) − Rₜ)²] + β KL

What differs from GRPO: the baseline is learned, so episodes need no group; the credit differs from turn to turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tacit.core.bounds import NotNegative, Positive, Share
from tacit.core.composition import Part, adds, replaces
from tacit.core.resources import Resources
from tacit.core.world import Environment
from tacit.credit.returns import GeneralizedAdvantage, Returns
from tacit.losses.regularizers import ValueLoss
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class PPO(GRPO):
    """Actor-critic with generalised advantage estimation over turns."""

    name: ClassVar[str] = "ppo"
    leads: ClassVar[bool] = True

    success_reward: Positive = 1.0
    """what success is worth; the value head shares the policy's weights and gradient clip, and at 10 its squared error would
    drown the policy's gradient"""
    invalid_penalty: NotNegative = 0.01
    """taken off a step whose completion does not parse into an action"""
    gamma: Share = 0.99
    """discount per turn"""
    lam: Share = 0.95
    """λ of the advantage estimate; 1 is return minus value"""
    value_coefficient: NotNegative = 0.5
    """weight of the value loss"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return (
            replaces("credits", "episode credit", GeneralizedAdvantage(self.gamma, self.lam)),
            adds("columns", "returns", Returns(self.gamma)),
            adds("losses", "value", ValueLoss(self.value_coefficient)),
        )
