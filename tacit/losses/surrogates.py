"""The clipped surrogate of PPO and everything descended from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tacit.core.protocols import TokenView

if TYPE_CHECKING:
    import torch

# The sampled policy gradient and its penalty to a reference (constant context, Eq. 9). An action is a step's completion:
#
# log π(a | x) = Σ over its tokens of log π(token),     the expectation is over steps, so a long action weighs more tokens


@dataclass(frozen=True)
class PolicyGradient:
    """L = −E[A log π(a | x)]: no ratio and no clip, so it is right only for the policy that sampled."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        drift_T = view.logprobs_T.detach() - view.behaviour_T
        loss = -(view.advantages_T * view.logprobs_T).sum() / view.total_rows
        return loss, {"ratio": drift_T.exp().sum()}


@dataclass(frozen=True)
class SampledPenalty:
    """β E[log π(a | x) − log π_ref(a | x)], as published.

    Its *value* estimates KL(π ‖ π_ref). Its gradient is β E[∇ log π(a | x)], in which the reference does not occur. Over
    samples of the whole distribution it is zero on average; over a nucleus q of it (top-p below 1) it is not: on the logits
    it is π − q, which pushes what was kept down and what was cut off up, whatever the reference says. To be held near the
    reference, use `losses.kl.ReferenceKL`, whose gradient does depend on it, or have the penalty inside the reward
    (companions/reference.py).
    """

    beta: float = 0.02
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        difference_T = view.logprobs_T - view.tokens["reference"]
        return self.beta * difference_T.sum() / view.total_rows, {"reference_kl": difference_T.detach().sum()}


# Sums that are means over the whole batch, however it is cut into micro-batches.

Over = Literal["tokens", "rows", "actions"]
"""`tokens`: every token of the batch weighs the same. `rows`: every step does, its tokens sharing one vote. `actions`: the
mean over steps of the sum over an action's tokens, as log π(a | x) is one."""


def mean_over(values_T: torch.Tensor, view: TokenView, over: Over = "tokens") -> torch.Tensor:
    """This micro-batch's share of the batch mean of a per-token quantity."""
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
    ratio="sequence"  ρ = (π(completion) / π_old(completion))^(1/length), one for all tokens of a step (GSPO); the gradient of
                      each token's term flows through its own log-probability
    ε_high > ε_low is DAPO's clip-higher. `dual` > 1 bounds the loss of negative advantages at dual · |A|.
    """

    low: float = 0.2
    high: float = 0.2
    ratio: Literal["token", "sequence"] = "token"
    over: Over = "tokens"
    dual: float | None = None
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        log_ratio_T = view.logprobs_T - view.behaviour_T
        if self.ratio == "sequence":
            mean_R = row_sums(log_ratio_T.detach(), view) / view.lengths_R
            # Value of the sequence ratio, gradient of the token: GSPO's token form with equal advantages is GSPO itself.
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
            # k3 of the move since sampling: how far this update has gone off policy
            "old_kl": ((-log_ratio_T).expm1() + log_ratio_T).sum(),
        }
        return -mean_over(gain_T, view, self.over), stats


# CISPO: clip the importance weight, keep every token's gradient.


@dataclass(frozen=True)
class ClippedWeight:
    """L = −E[sg(clip(ρ, 1 − ε_low, 1 + ε_high)) · A · log π]"""

    low: float = 0.1
    high: float = 0.1
    over: Over = "tokens"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        ratio_T = (view.logprobs_T.detach() - view.behaviour_T).exp()
        weight_T = ratio_T.clamp(1.0 - self.low, 1.0 + self.high)
        stats = {"ratio": ratio_T.sum(), "ratio_max": ratio_T.max(), "clipped": (weight_T != ratio_T).float().sum()}
        return -mean_over(weight_T * view.advantages_T * view.logprobs_T, view, self.over), stats
