"""silu(g) · u of [g; u] with its gradient, on a GPU: one launch there and one back, each once through memory.

    y = g σ(g) u        dL/dg = dL/dy · u · (s + a (1 − s)),  dL/du = dL/dy · a        s = σ(g), a = g s

A compiler takes twice the time for the gradient: to it the two halves are two tensors, which it lays side by side by asking for
every number to which half it belongs.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from tacit.engines.local.passes.kernels import early, holds, on_its_device

BLOCK, WARPS = 1024, 4
"""of a program: eight numbers of 16 bits for each thread, which it reads in one go"""


class Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up_NF: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate_up_NF)
        return let(gate_up_NF)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (gate_up_NF,) = ctx.saved_tensors
        return pulled(gate_up_NF, gradients[0].contiguous())


@on_its_device
def let(gate_up_NF: torch.Tensor) -> torch.Tensor:
    """What the gates let through."""
    from tacit.engines.local.passes.gating_kernel import let_through  # triton is only there where there is a GPU

    rows, inner = len(gate_up_NF), gate_up_NF.shape[1] // 2
    through_NF = gate_up_NF.new_empty(rows, inner)
    if rows:
        shape = (inner, gate_up_NF.stride(0))
        how = {"BLOCK": BLOCK, "num_warps": WARPS} | early(gate_up_NF.device)
        let_through[_grid(rows, inner)](gate_up_NF, through_NF, *shape, **how)
    return through_NF


@on_its_device
def pulled(gate_up_NF: torch.Tensor, gradient_NF: torch.Tensor) -> torch.Tensor:
    """The gradient of both halves, side by side."""
    from tacit.engines.local.passes.gating_kernel import pull_both

    rows, inner = gradient_NF.shape
    both_NF = gradient_NF.new_empty(rows, 2 * inner)
    if rows:
        shape = (inner, gate_up_NF.stride(0))
        pull_both[_grid(rows, inner)](gate_up_NF, gradient_NF, both_NF, *shape, BLOCK=BLOCK, num_warps=WARPS)
    return both_NF


@cache
def has_gating_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    return holds("gates", device, partial(_agrees, device, dtype))


def _agrees(device: torch.device, dtype: torch.dtype) -> bool:
    """Rows that are no multiple of a block; of those that are one of 16 the compiler makes other kernels."""
    return all(_agrees_on(BLOCK + more, device, dtype) for more in (24, 32))


def _agrees_on(inner: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Gates from wide open to shut."""
    generator, rows = torch.Generator(device).manual_seed(0), 5
    gate_up_NF = 4 * torch.randn(rows, 2 * inner, generator=generator, device=device)
    gate_up_NF[:, :8] = torch.tensor([-200.0, -90, -20, -1, 0, 1, 20, 200], device=device)
    gate_up_NF = gate_up_NF.to(dtype)
    gradient_NF = torch.randn(rows, inner, generator=generator, device=device).to(dtype)
    gate_NF, up_NF = gate_up_NF.double().chunk(2, -1)
    opened_NF = gate_NF.sigmoid()
    activated_NF = gate_NF * opened_NF
    for_gate_NF = up_NF * (opened_NF + activated_NF * (1 - opened_NF))
    expected_NF = torch.cat([for_gate_NF, activated_NF], -1) * gradient_NF.double().repeat(1, 2)
    close = partial(torch.allclose, atol=1e-5, rtol=torch.finfo(dtype).eps + 1e-4)
    return close(let(gate_up_NF).double(), activated_NF * up_NF) and close(
        pulled(gate_up_NF, gradient_NF).double(), expected_NF
    )


def _grid(rows: int, inner: int) -> tuple[int, int]:
    return rows, -(-inner // BLOCK)
