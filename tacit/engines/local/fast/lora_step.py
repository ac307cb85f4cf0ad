"""A decode step with LoRA on a GPU, where each launch takes longer than an adapter's arithmetic.

A is stacked below the weights (projections.py), so one product gives y = Wx and a = Ax. The rest of the adapter is fused into
the operation that follows:

    h, x  = h + y + a Bᵀ, RMSNorm(h)                        after attention and after the MLP: one launch
    s     = silu(g + a Bgᵀ) · (u + a Buᵀ)                   SwiGLU: one launch

Only q, k and v need a separate launch for a Bᵀ. Sums are float32 and rounded once, so that rounding does not lose a small
adapter's contribution to a large h.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from tacit.engines.local.fast.kernels import (
    capability_probe,
    is_kernel_usable,
    make_random,
    on_tensor_device,
    pdl_options,
)
from tacit.engines.local.fast.kv_cache import AttentionMetadata, KeyValueCache
from tacit.engines.local.fast.layers import SamplerOps
from tacit.engines.local.packing import next_power_of_two

MAX_RANK = 64  # for larger ranks separate products are faster, because every program reads all of B
MAX_WIDTH = 8192  # widest residual stream that fits into a program's registers
BLOCK_FEATURES, BLOCK_ROWS, LARGE_BLOCK_ROWS = 64, 16, 32
"""features and rows per program of the SwiGLU kernel: within 5% of the fastest of ten shapes, 64 to 2,048 rows on an H200"""
LARGE_BATCH = 128  # above this many rows, a program computes LARGE_BLOCK_ROWS


def lora_decode(
    h_BD: Tensor,
    layers: Sequence[Any],
    last_norm: Any,
    rope_B: Tensor | None,
    cache: KeyValueCache,
    metadata: AttentionMetadata,
    ops: type[SamplerOps],
) -> Tensor:
    """All layers and the final norm of `LlamaForward.decode_step`; changes `h_BD` in place."""
    x = ops.rms_norm(h_BD, layers[0].input_norm)
    for depth, layer in enumerate(layers):
        q, k, v = layer.split_heads(layer.qkv(x), rope_B, ops)
        attended = cache.attend(depth, q, k, v, metadata)
        x = add_lora_and_norm(h_BD, layer.mlp_norm, *layer.out.project_with_lora_input(attended))
        next_norm = layers[depth + 1].input_norm if depth + 1 < len(layers) else last_norm
        s = lora_swiglu(*layer.gate_up.project_with_lora_input(x))
        x = add_lora_and_norm(h_BD, next_norm, *layer.down.project_with_lora_input(s))
    return x


@on_tensor_device
def add_lora_and_norm(h_BD: Tensor, norm: Any, product_BP: Tensor, lora_B: Tensor) -> Tensor:
    """h += y + a Bᵀ in place, where [y, a] is the product; returns RMSNorm(h). B is stored column-major."""
    from tacit.engines.local.fast.triton_kernels import lora_add_rms_norm_kernel  # Triton comes with CUDA only

    (rows, width), rank = h_BD.shape, lora_B.shape[1]
    normed_BD, block = torch.empty_like(h_BD), next_power_of_two(width)
    lora_add_rms_norm_kernel[(rows,)](
        h_BD, product_BP, lora_B, norm.weight, normed_BD, norm.variance_epsilon,
        WIDTH=width, RANK=rank, PADDED=next_power_of_two(rank), BLOCK=block, num_warps=max(1, min(16, block // 256)),
        **pdl_options(h_BD.device),
    )  # fmt: skip
    return normed_BD


@on_tensor_device
def lora_swiglu(product_BP: Tensor, lora_B: Tensor) -> Tensor:
    """silu(g + a Bgᵀ) · (u + a Buᵀ), where [g, u, a] is the product and B = [Bg; Bu] is stored column-major."""
    from tacit.engines.local.fast.triton_kernels import lora_swiglu_kernel

    features, rank = lora_B.shape
    rows, inner = len(product_BP), features // 2
    out_BF = torch.empty(rows, inner, dtype=product_BP.dtype, device=product_BP.device)
    block_rows = BLOCK_ROWS if rows <= LARGE_BATCH else LARGE_BLOCK_ROWS
    lora_swiglu_kernel[(-(-inner // BLOCK_FEATURES), -(-rows // block_rows))](
        product_BP, lora_B, out_BF, rows,
        INNER=inner, RANK=rank, PADDED=max(16, next_power_of_two(rank)), ROWS=block_rows, BLOCK=BLOCK_FEATURES,
        **pdl_options(product_BP.device),
    )  # fmt: skip
    return out_BF


def has_lora_decode(layers: Sequence[Any], device: torch.device, dtype: torch.dtype) -> bool:
    """Whether out, gate_up and down all have adapters of ranks that the kernels support."""

    def fits(layer: Any) -> bool:
        residual, gate_up = (layer.out, layer.down), layer.gate_up
        if not layer.uses_silu or not all(projection.lora_rank for projection in (*residual, gate_up)):
            return False
        return has_lora_swiglu_kernel(device, dtype, len(gate_up.weight) // 2, gate_up.lora_rank) and all(
            has_lora_norm_kernel(device, dtype, len(projection.weight), projection.lora_rank) for projection in residual
        )

    return all(map(fits, layers))


@capability_probe
def has_lora_norm_kernel(device: torch.device, dtype: torch.dtype, width: int, rank: int) -> bool:
    fits = width <= MAX_WIDTH and rank <= MAX_RANK and dtype in (torch.bfloat16, torch.float16)
    return fits and is_kernel_usable("LoRA and RMSNorm", device, partial(_check_norm_kernel, device, dtype, width, rank))


@capability_probe
def has_lora_swiglu_kernel(device: torch.device, dtype: torch.dtype, inner: int, rank: int) -> bool:
    fits = rank <= 2 * MAX_RANK and dtype in (torch.bfloat16, torch.float16)
    return fits and is_kernel_usable("LoRA and SwiGLU", device, partial(_check_swiglu_kernel, device, dtype, inner, rank))


def _check_norm_kernel(device: torch.device, dtype: torch.dtype, width: int, rank: int) -> bool:
    """Compare with torch, with h larger than what is added to it, as in a model."""
    rows = 5
    shapes = (rows, width), (rows, width + rank), (rank, width), (width,)
    h_BD, product_BP, lora_B, weight_D = map(make_random(device, dtype), shapes)
    norm = SimpleNamespace(weight=weight_D, variance_epsilon=1e-6)
    h_BD *= 8
    y_BD, a_BR = product_BP.double().split((width, rank), 1)
    expected_BD = h_BD.double() + y_BD + a_BR @ lora_B.double()
    normed_BD = add_lora_and_norm(h_BD, norm, product_BP, lora_B.t())
    expected_normed_BD = rms_norm(h_BD.double(), (width,), weight_D.double(), norm.variance_epsilon)
    return _is_close(h_BD, expected_BD) and _is_close(normed_BD, expected_normed_BD)


def _check_swiglu_kernel(device: torch.device, dtype: torch.dtype, inner: int, rank: int) -> bool:
    """Compare with torch, for row counts that are not multiples of a program's."""

    def close(rows: int) -> bool:
        product_BP, lora_B = map(make_random(device, dtype), ((rows, 2 * inner + rank), (rank, 2 * inner)))
        y_BF, a_BR = product_BP.double().split((2 * inner, rank), 1)
        gate_BF, up_BF = (y_BF + a_BR @ lora_B.double()).chunk(2, 1)
        return _is_close(lora_swiglu(product_BP, lora_B.t()), silu(gate_BF) * up_BF)

    return close(BLOCK_ROWS + 3) and close(LARGE_BATCH + 3)


def _is_close(result: Tensor, expected: Tensor) -> bool:
    return torch.allclose(result.double(), expected, atol=2e-2, rtol=2e-2)
