"""What lies between the matrix products when sampling, in two ways: as torch has it, and each in one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import rms_norm

from tacit.engines.local.passes.norming import has_norming_kernel, norm_rows
from tacit.engines.local.passes.pieces import COMPILED


class Ways:
    """How what lies between the matrix products is computed: as torch has it."""

    @staticmethod
    def normed(h: torch.Tensor, norm: Any) -> torch.Tensor:
        return rms_norm(h, h.shape[-1:], norm.weight, norm.variance_epsilon)

    @staticmethod
    def rotated(x: torch.Tensor, cis: torch.Tensor) -> torch.Tensor:
        """(a + ib)(cos + i sin) for every pair, in float32."""
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * cis).flatten(-2).to(x.dtype)

    @staticmethod
    def gated(gate_up: torch.Tensor, activation: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return activation(gate) * up


class CompiledWays(Ways):
    """Each in one launch."""

    @staticmethod
    def normed(h: torch.Tensor, norm: Any) -> torch.Tensor:
        if h.ndim == 2 and has_norming_kernel(h.device, h.dtype, h.shape[1]):
            return norm_rows(h, norm.weight, norm.variance_epsilon)
        return COMPILED.normed(h, norm.weight, norm.variance_epsilon)

    @staticmethod
    def rotated(x: torch.Tensor, cis: torch.Tensor) -> torch.Tensor:
        return COMPILED.rotated_pairs(x, torch.view_as_real(cis))

    @staticmethod
    def gated(gate_up: torch.Tensor, activation: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return COMPILED.gated(gate_up)
