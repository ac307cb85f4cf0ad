"""The clipped surrogate of PPO and everything descended from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tacit.core.protocols import TokenView
from tacit.losses.aggregate import Over, mean_over, row_sums

if TYPE_CHECKING:
    import torch


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
