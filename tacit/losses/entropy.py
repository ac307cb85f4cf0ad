"""Keeping options open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tacit.core.protocols import TokenView
from tacit.losses.aggregate import mean_over

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class EntropyBonus:
    """L = −c E[H(π)]"""

    coefficient: float = 0.001
    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        assert view.entropy_T is not None
        return -self.coefficient * mean_over(view.entropy_T, view), {}
