"""Policy losses (the clipped surrogate of PPO and GSPO, CISPO's clipped weight, the plain policy gradient), regularizers (KL,
entropy bonus), value loss and imitation.

A step's completion is one action a for the prompt x: log π(a | x) = Σ over its tokens of log π(token).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from tacit.core.credit import Per, Rewards
from tacit.core.method import Column
from tacit.core.protocols import REFERENCE, SCORING, Policy, TokenView
from tacit.core.types import Group, IterationInfo, flat_steps

if TYPE_CHECKING:
    import torch

Denominator = Literal["tokens", "rows", "actions"]
"""tokens: mean over tokens. rows: mean over steps of the mean over a step's tokens. actions: mean over steps of the sum."""


def mean_over(values_T: torch.Tensor, view: TokenView, over: Denominator = "tokens") -> torch.Tensor:
    """This micro-batch's part of the batch mean of a per-token quantity; the parts of all micro-batches add up to it."""
    if over == "tokens":
        return values_T.sum() / view.total_tokens
    if over == "actions":
        return values_T.sum() / view.total_rows
    return (values_T / view.lengths_R[view.row_T]).sum() / view.total_rows


def row_sums(values_T: torch.Tensor, view: TokenView) -> torch.Tensor:
    """[R] sum of a per-token quantity over each row."""
    return values_T.new_zeros(len(view.lengths_R)).index_add(0, view.row_T, values_T)


@dataclass(frozen=True)
class ClippedSurrogate:
    """L = −E[min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)]

    ratio="token"     ρ = π(token) / π_old(token)
    ratio="sequence"  ρ = (π(completion) / π_old(completion))^(1/length), one for all tokens of a step (GSPO)
    ε_high > ε_low is DAPO's clip-higher. `dual` > 1 bounds the loss of negative advantages at dual · |A|.
    """

    low: float = 0.2
    high: float = 0.2
    ratio: Literal["token", "sequence"] = "token"
    over: Denominator = "tokens"
    dual: float | None = None
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        log_ratio_T = view.logprobs_T - view.behavior_T
        if self.ratio == "sequence":
            mean_R = row_sums(log_ratio_T.detach(), view) / view.lengths_R
            # GSPO-token: value of the sequence ratio, gradient through each token. GSPO if a step's advantages are equal.
            log_ratio_T = mean_R[view.row_T] + view.logprobs_T - view.logprobs_T.detach()
        ratio_T = log_ratio_T.exp()
        clipped_T = ratio_T.clamp(1.0 - self.low, 1.0 + self.high)
        gain_T = (ratio_T * view.advantages_T).minimum(clipped_T * view.advantages_T)
        if self.dual is not None:
            gain_T = gain_T.maximum(self.dual * view.advantages_T).where(view.advantages_T < 0, gain_T)
        ratio_T, log_ratio_T = ratio_T.detach(), log_ratio_T.detach()
        too_high_T = (view.advantages_T > 0) & (ratio_T > 1.0 + self.high)
        too_low_T = (view.advantages_T < 0) & (ratio_T < 1.0 - self.low)
        stats = {
            "ratio": ratio_T.sum(),
            "ratio_max": ratio_T.max(),
            "clipped": (too_high_T | too_low_T).sum(),
            # k3 estimate of KL(π_old ‖ π)
            "old_kl": ((-log_ratio_T).expm1() + log_ratio_T).sum(),
        }
        return -mean_over(gain_T, view, self.over), stats


@dataclass(frozen=True)
class ClippedWeight:
    """CISPO: L = −E[sg(clip(ρ, 1 − ε_low, 1 + ε_high)) · A · log π]"""

    low: float = 0.1
    high: float = 0.1
    over: Denominator = "tokens"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        ratio_T = (view.logprobs_T.detach() - view.behavior_T).exp()
        weight_T = ratio_T.clamp(1.0 - self.low, 1.0 + self.high)
        stats = {"ratio": ratio_T.sum(), "ratio_max": ratio_T.max(), "clipped": (weight_T != ratio_T).float().sum()}
        return -mean_over(weight_T * view.advantages_T * view.logprobs_T, view, self.over), stats


@dataclass(frozen=True)
class PolicyGradient:
    """L = −E[A log π(a | x)] over steps (constant context, Eq. 9). No importance ratio, so it is valid only on policy."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        drift_T = view.logprobs_T.detach() - view.behavior_T
        loss = -(view.advantages_T * view.logprobs_T).sum() / view.total_rows
        return loss, {"ratio": drift_T.exp().sum()}


@dataclass(frozen=True)
class SampledPenalty:
    """L = β E[log π(a | x) − log π_ref(a | x)], as published (constant context, Eq. 9).

    Its value estimates KL(π ‖ π_ref), but its gradient β E[∇ log π(a | x)] does not depend on π_ref, and is zero on average
    over samples of π. With samples of a nucleus q of π (top-p below 1), descent moves the logits along π − q on average: kept
    tokens down, cut-off tokens up. `ReferenceKL` and the penalty in the reward (rewards/outcome.py) do pull towards π_ref.
    """

    beta: float = 0.02
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        difference_T = view.logprobs_T - view.tokens["reference"]
        return self.beta * difference_T.sum() / view.total_rows, {"reference_kl": difference_T.detach().sum()}


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
    over: Denominator = "tokens"
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        # ±10 as in the reference implementations, against overflow of exp(d).
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
