"""A feed-forward with adapters, and its gradient, as one step on a GPU: whatever an adapter reads of what the gate makes is
computed where the gate has it in its hands, instead of going through all of it once more.

    a = x [Ag; Au]ᵀ          [g, u] = x [Wg; Wu]ᵀ + a diag(sg Bg, su Bu)ᵀ
    h = silu(g) · u,  b = h Adᵀ                                                one launch
    y = h Wdᵀ + sd b Bdᵀ

and back, with p = dL/dy and c = sd p Bd:

    dL/dh = p Wd + c Ad
    dL/dg, dL/du of dL/dh,  eg = sg dL/dg Bg,  eu = su dL/du Bu                one launch
    dL/dx = [dL/dg, dL/du] [Wg; Wu] + [eg, eu] [Ag; Au]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, silu

from tacit.engines.local.passes.joint import for_lora_B, plain_parts, way_back, way_there
from tacit.engines.local.passes.kernels import holds, on_its_device
from tacit.engines.local.passes.projections import Parts

RANKS = (16, 32, 64)
"""that the kernels know: a matrix unit's step, and what a program has registers for"""


class Launch(NamedTuple):
    rows: int
    block: int
    warps: int
    stages: int


LET, PULL = Launch(64, 64, 8, 3), Launch(64, 64, 8, 3)


def fed_forward(x_ND: torch.Tensor, mlp: Any) -> torch.Tensor | None:
    """What the feed-forward makes of x; None where it is no case for these kernels."""
    parts = plain_parts([mlp.gate_proj, mlp.up_proj, mlp.down_proj])
    if parts is None or not _suits(parts) or not _has_kernels(x_ND.device, x_ND.dtype, parts[0][2][0][0].shape[0]):
        return None
    (gate, _, [(gate_A, gate_B, of_gate)]), (up, _, [(up_A, up_B, of_up)]), (down, _, [(down_A, down_B, of_down)]) = parts
    weights, adapters = torch.cat([gate, up]), (torch.cat([gate_A, up_A]), gate_B, up_B, down_A, down_B)
    return _FedForward.apply(x_ND, weights, down, (of_gate, of_up, of_down), *adapters)


def _suits(parts: Sequence[Parts]) -> bool:
    """Three frozen matrices without a bias, and an adapter of one rank at each."""
    if any(bias is not None or not adapters or weight.requires_grad for weight, bias, adapters in parts):
        return False
    ranks = {adapters[0][0].shape[0] for _, _, adapters in parts}
    return len(ranks) == 1 and ranks <= set(RANKS)


class _FedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        scales: tuple[float, float, float],
        gate_up_A: torch.Tensor,
        gate_B: torch.Tensor,
        up_B: torch.Tensor,
        down_A: torch.Tensor,
        down_B: torch.Tensor,
    ) -> torch.Tensor:
        inner, rank = gate_B.shape
        layout = [inner, inner], [rank, rank], list(scales[:2])
        both, x, a = way_there(x, gate_up)(x, gate_up, None, gate_up_A, layout, (gate_B, up_B))
        h, b = let(both, down_A)
        y = linear(h, down).addmm_(b, down_B.t(), alpha=scales[2])
        ctx.save_for_backward(x, a, both, h, b, gate_up, down, gate_up_A, gate_B, up_B, down_A, down_B)
        ctx.scales = scales
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, a, both, h, b, gate_up, down, gate_up_A, gate_B, up_B, down_A, down_B = ctx.saved_tensors
        pull, (of_gate, of_up, of_down), rank = gradients[0], ctx.scales, gate_B.shape[1]
        c = torch.addmm(b, pull, down_B, beta=0, alpha=of_down)
        of_h = way_back(pull, down)(pull, down, c, down_A)
        of_both, e = pulled(both, of_h, torch.cat([gate_B, up_B]), of_gate, of_up)
        (for_gate, for_up), (gate_a, up_a) = of_both.chunk(2, 1), a.split(rank, 1)
        return (
            way_back(of_both, gate_up)(of_both, gate_up, e, gate_up_A) if ctx.needs_input_grad[0] else None,
            *(None, None, None),
            e.t() @ x,
            for_lora_B(gate_B, for_gate, gate_a, of_gate),
            for_lora_B(up_B, for_up, up_a, of_up),
            c.t() @ h,
            for_lora_B(down_B, pull, b, of_down),
        )


@on_its_device
def let(gate_up_NF: torch.Tensor, lora_A: torch.Tensor, launch: Launch = LET) -> tuple[torch.Tensor, torch.Tensor]:
    """(what the gates let through, what A reads of it)"""
    from tacit.engines.local.passes.adapted_mlp_kernel import let_and_read  # triton is only there where there is a GPU

    rows, (rank, inner) = len(gate_up_NF), lora_A.shape
    through_NF, read_NR = gate_up_NF.new_empty(rows, inner), gate_up_NF.new_empty(rows, rank)
    where, how = _launched(rows, launch)
    let_and_read[where](gate_up_NF, lora_A, through_NF, read_NR, rows, inner, gate_up_NF.stride(0), RANK=rank, **how)
    return through_NF, read_NR


@on_its_device
def pulled(
    gate_up_NF: torch.Tensor,
    gradient_NF: torch.Tensor,
    lora_B: torch.Tensor,
    of_gate: float,
    of_up: float,
    launch: Launch = PULL,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the gradient of both halves, side by side; what B of each reads of it, B being [Bg; Bu])"""
    from tacit.engines.local.passes.adapted_mlp_kernel import pull_and_read

    (rows, inner), rank = gradient_NF.shape, lora_B.shape[1]
    both_NF, read_NR = gradient_NF.new_empty(rows, 2 * inner), gradient_NF.new_empty(rows, 2 * rank)
    where, how = _launched(rows, launch)
    shape = rows, inner, gate_up_NF.stride(0), of_gate, of_up
    pull_and_read[where](gate_up_NF, gradient_NF, lora_B, both_NF, read_NR, *shape, RANK=rank, **how)
    return both_NF, read_NR


def _launched(rows: int, launch: Launch) -> tuple[tuple[int], dict[str, int]]:
    how = {"ROWS": launch.rows, "BLOCK": launch.block, "num_warps": launch.warps, "num_stages": launch.stages}
    return (-(-rows // launch.rows),), how


@cache
def _has_kernels(device: torch.device, dtype: torch.dtype, rank: int) -> bool:
    half = dtype in (torch.bfloat16, torch.float16)
    return half and holds("feed-forwards with adapters", device, partial(_agrees, device, dtype, rank))


def _agrees(device: torch.device, dtype: torch.dtype, rank: int) -> bool:
    """Rows and features that are no multiple of a block; of features that are one of 16 the compiler makes other kernels."""
    return all(_agrees_on(2 * LET.block + more, device, dtype, rank) for more in (24, 32))


def _agrees_on(inner: int, device: torch.device, dtype: torch.dtype, rank: int) -> bool:
    generator, rows = torch.Generator(device).manual_seed(0), LET.rows + 3

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    gate_up_NF, gradient_NF, lora_A, lora_B = made(rows, 2 * inner), made(rows, inner), made(rank, inner), made(2 * inner, rank)
    both = gate_up_NF.double().requires_grad_()
    with torch.enable_grad():
        through_NF = silu(both[:, :inner]) * both[:, inner:]
        (of_both_NF,) = torch.autograd.grad(through_NF, both, gradient_NF.double())
    halves = zip(of_both_NF.chunk(2, 1), lora_B.double().chunk(2), (0.5, 2.0), strict=True)
    expected = [through_NF, through_NF @ lora_A.double().t(), of_both_NF, torch.cat([s * g @ B for g, B, s in halves], 1)]
    found = [*let(gate_up_NF, lora_A), *pulled(gate_up_NF, gradient_NF, lora_B, 0.5, 2.0)]
    return all((ours.double() - exact).norm() < 4e-3 * exact.norm() for ours, exact in zip(found, expected, strict=True))
