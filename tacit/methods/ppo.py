"""PPO (Schulman et al., 2017) over turns, with a value head on the policy that estimates the return of each prompt.

    δₜ = rₜ + γ V(sₜ₊₁) − V(sₜ),   Aₜ = δₜ + γλ Aₜ₊₁
    L  = clipped surrogate + c E[(V(sₜ) − Rₜ)²] + β KL

What differs from GRPO: a learned baseline instead of the group, credit per turn (GAE), and the value loss.
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
    """Actor-critic with generalized advantage estimation over turns."""

    name: ClassVar[str] = "ppo"
    leads: ClassVar[bool] = True

    success_reward: Positive = 1.0
    """reward of a success; at 10, the squared error of the value head would dominate the shared gradient"""
    invalid_penalty: NotNegative = 0.01
    """penalty on a step whose completion does not parse into an action"""
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
