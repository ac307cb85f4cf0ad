"""Doing what was shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tacit.core.protocols import TokenView
from tacit.losses.aggregate import mean_over

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Imitation:
    """L = −E[log π(shown token)], each token weighted by its advantage (1 in a batch of demonstrations)."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        return -mean_over(view.advantages_T * view.logprobs_T, view), {}
