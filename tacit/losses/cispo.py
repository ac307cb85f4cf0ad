"""CISPO: clip the importance weight, keep every token's gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tacit.core.protocols import TokenView
from tacit.losses.aggregate import Over, mean_over

if TYPE_CHECKING:
    import torch


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
