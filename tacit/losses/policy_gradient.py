"""The sampled policy gradient and its penalty to a reference (constant context, Eq. 9). An action is a step's completion:

log π(a | x) = Σ over its tokens of log π(token),     the expectation is over steps, so a long action weighs more tokens
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tacit.core.protocols import TokenView

if TYPE_CHECKING:
    import torch


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
