"""Teaching the value head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tacit.core.protocols import TokenView

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ValueLoss:
    """L = c E[(V(s) − R)²] over the steps of the batch."""

    coefficient: float = 0.5
    needs: ClassVar[frozenset[str]] = frozenset({"values", "returns"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        assert view.values_R is not None
        error_R = view.values_R - view.rows["returns"]
        return self.coefficient * (error_R**2).sum() / view.total_rows, {}
