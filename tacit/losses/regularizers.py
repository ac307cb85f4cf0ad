"""Regularizers and auxiliary losses: reference KL, entropy bonus, value loss, imitation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tacit.core.credit import Per, Rewards
from tacit.core.method import Column
from tacit.core.protocols import REFERENCE, SCORING, Policy, TokenView
from tacit.core.types import Group, IterationInfo, flat_steps
from tacit.losses.surrogates import Over, mean_over

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ReferenceLogprobs(Column):
    """log π_ref of every sampled token."""

    temperature: float = 1.0
    name: ClassVar[str] = "reference"
    per: ClassVar[Per] = "token"
    needs: ClassVar[frozenset[str]] = frozenset({SCORING, REFERENCE})

    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo | None = None
    ) -> list[np.ndarray]:
        steps = flat_steps(groups)
        return policy.reference().logprobs(
            [s.prompt_tokens for s in steps], [s.completion.tokens for s in steps], self.temperature
        )


@dataclass(frozen=True)
class ReferenceKL:
    """L = β E[exp(d) − d − 1],  d = log π_ref − log π: the k3 estimator of KL(π ‖ π_ref), never negative.

    Use `over="actions"` with a policy loss that sums over an action's tokens; otherwise β shrinks by the action's length.
    """

    beta: float = 0.01
    over: Over = "tokens"
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        # ±10, as in the reference implementations, against overflow of exp(d)
        d_T = (view.tokens["reference"] - view.logprobs_T).clamp(-10.0, 10.0)
        kl_T = d_T.expm1() - d_T
        return self.beta * mean_over(kl_T, view, self.over), {"reference_kl": kl_T.detach().sum()}


@dataclass(frozen=True)
class EntropyBonus:
    """L = −c E[H(π)]"""

    coefficient: float = 0.001
    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        assert view.entropy_T is not None
        return -self.coefficient * mean_over(view.entropy_T, view), {}


@dataclass(frozen=True)
class ValueLoss:
    """L = c E[(V(s) − R)²] over the steps of the batch."""

    coefficient: float = 0.5
    needs: ClassVar[frozenset[str]] = frozenset({"values", "returns"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        assert view.values_R is not None
        error_R = view.values_R - view.rows["returns"]
        return self.coefficient * (error_R**2).sum() / view.total_rows, {}


@dataclass(frozen=True)
class Imitation:
    """L = −E[A log π(token)], with A = 1 in a batch of demonstrations."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        return -mean_over(view.advantages_T * view.logprobs_T, view), {}
