"""A decode step with LoRA adapters on a GPU, where each launch takes longer than what an adapter computes.

With A beside the weights (projections.py) a product gives y and a at once; what is left of the adapter is part of what follows:

    h, x  = h + y + a Bᵀ, norm(h)                           after attention and after the feed-forward: one launch
    s     = silu(g + a Bgᵀ) · (u + a Buᵀ)                   one launch

Of the adapters' own launches one is left, which adds a Bᵀ to queries, keys and values. Sums are float32's and rounded once, so
that a small adapter is not lost in a large h.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import rms_norm, silu

from tacit.engines.local.fast.compiled import SamplerOps
from tacit.engines.local.fast.kernels import capability_probe, early_launch_options, is_kernel_usable, on_tensor_device
from tacit.engines.local.kv_cache import KeyValueCache, Reading
from tacit.engines.local.packing import next_power_of_two

MOST_RANK = 64
"""above it every row would read too much of B by itself, and products do better"""
MOST_WIDTH = 8192
"""of a residual stream whose rows fit into a program's registers"""
ADAPTED_BLOCK, FEW_ROWS, MANY_ROWS = 64, 16, 32
"""features and rows of a program that gates: within 5% of the quickest of ten shapes, for 64 to 2,048 rows on an H200"""
MANY = 128
"""rows above which programs have many"""


def adapted_step(
    h_BD: torch.Tensor,
    layers: Sequence[Any],
    last_norm: Any,
    cis_B: torch.Tensor | None,
    cache: KeyValueCache,
    reading: Reading,
    ways: type[SamplerOps],
) -> torch.Tensor:
    """The rows of a step, through all layers and the last norm; `h_BD` itself is changed. The mathematics is that of
    `LlamaForward.step`."""
    x = ways.normed(h_BD, layers[0].input_norm)
    for depth, layer in enumerate(layers):
        q, k, v = layer.by_head(layer.qkv(x), cis_B, ways)
        attended = cache.attend(depth, q, k, v, reading)
        if depth + 1 == len(layers):
            h_BD, attended = h_BD[: reading.width], attended[: reading.width]
        x = added(h_BD, layer.mlp_norm, *layer.out.beside(attended))
        following = layers[depth + 1].input_norm if depth + 1 < len(layers) else last_norm
        x = added(h_BD, following, *layer.down.beside(gated(*layer.gate_up.beside(x))))
    return x


@on_tensor_device
def added(h_BD: torch.Tensor, norm: Any, product_BP: torch.Tensor, lora_B: torch.Tensor) -> torch.Tensor:
    """h becomes h + y + a Bᵀ, where [y, a] is the product; returns norm(h). B runs along the outputs in memory."""
    from tacit.engines.local.fast.layer_kernels import lora_add_rms_norm_kernel  # triton is only there where there is a GPU

    (rows, width), rank = h_BD.shape, lora_B.shape[1]
    normed_BD, block = torch.empty_like(h_BD), next_power_of_two(width)
    lora_add_rms_norm_kernel[(rows,)](
        h_BD,
        product_BP,
        lora_B,
        norm.weight,
        normed_BD,
        norm.variance_epsilon,
        WIDTH=width,
        RANK=rank,
        PADDED=next_power_of_two(rank),
        BLOCK=block,
        num_warps=max(1, min(16, block // 256)),
        **early_launch_options(h_BD.device),
    )
    return normed_BD


@on_tensor_device
def gated(product_BP: torch.Tensor, lora_B: torch.Tensor) -> torch.Tensor:
    """silu(g + a Bgᵀ) · (u + a Buᵀ), where [g, u, a] is the product and B = [Bg; Bu] runs along the outputs in memory."""
    from tacit.engines.local.fast.layer_kernels import lora_swiglu_kernel

    features, rank = lora_B.shape
    rows, inner = len(product_BP), features // 2
    gated_BF = torch.empty(rows, inner, dtype=product_BP.dtype, device=product_BP.device)
    together = FEW_ROWS if rows <= MANY else MANY_ROWS
    lora_swiglu_kernel[(-(-inner // ADAPTED_BLOCK), -(-rows // together))](
        product_BP,
        lora_B,
        gated_BF,
        rows,
        INNER=inner,
        RANK=rank,
        PADDED=max(16, next_power_of_two(rank)),
        ROWS=together,
        BLOCK=ADAPTED_BLOCK,
        **early_launch_options(product_BP.device),
    )
    return gated_BF


def has_adapted_step(layers: Sequence[Any], device: torch.device, dtype: torch.dtype) -> bool:
    """Whether every matrix whose product a kernel reads has adapters, of ranks that the kernels know."""

    def fits(layer: Any) -> bool:
        adds, gates = (layer.out, layer.down), layer.gate_up
        if not layer.gates_by_silu or not all(projection.rank for projection in (*adds, gates)):
            return False
        return has_gate_kernel(device, dtype, len(gates.weight) // 2, gates.rank) and all(
            has_norm_kernel(device, dtype, len(projection.weight), projection.rank) for projection in adds
        )

    return all(map(fits, layers))


@capability_probe
def has_norm_kernel(device: torch.device, dtype: torch.dtype, width: int, rank: int) -> bool:
    fits = width <= MOST_WIDTH and rank <= MOST_RANK and dtype in (torch.bfloat16, torch.float16)
    return fits and is_kernel_usable("adapters and norms", device, partial(_adds, device, dtype, width, rank))


@capability_probe
def has_gate_kernel(device: torch.device, dtype: torch.dtype, inner: int, rank: int) -> bool:
    fits = rank <= 2 * MOST_RANK and dtype in (torch.bfloat16, torch.float16)
    return fits and is_kernel_usable("adapters and gates", device, partial(_gates, device, dtype, inner, rank))


def _adds(device: torch.device, dtype: torch.dtype, width: int, rank: int) -> bool:
    """Rows whose h is larger than what is added to them, as it is in a model."""
    rows = 5
    h_BD, product_BP, lora_B, weight_D = _trial(device, dtype, (rows, width), (rows, width + rank), (rank, width), (width,))
    norm = SimpleNamespace(weight=weight_D, variance_epsilon=1e-6)
    h_BD *= 8
    y_BD, a_BR = product_BP.double().split((width, rank), 1)
    expected_BD = h_BD.double() + y_BD + a_BR @ lora_B.double()
    normed_BD = added(h_BD, norm, product_BP, lora_B.t())
    again_BD = rms_norm(h_BD.double(), (width,), weight_D.double(), norm.variance_epsilon)
    return _close(h_BD, expected_BD) and _close(normed_BD, again_BD)


def _gates(device: torch.device, dtype: torch.dtype, inner: int, rank: int) -> bool:
    """Of few and of many rows: more than a program has, and no multiple of them."""

    def close(rows: int) -> bool:
        product_BP, lora_B = _trial(device, dtype, (rows, 2 * inner + rank), (rank, 2 * inner))
        y_BF, a_BR = product_BP.double().split((2 * inner, rank), 1)
        gate_BF, up_BF = (y_BF + a_BR @ lora_B.double()).chunk(2, 1)
        return _close(gated(product_BP, lora_B.t()), silu(gate_BF) * up_BF)

    return close(FEW_ROWS + 3) and close(MANY + 3)


def _trial(device: torch.device, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    return [torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes]


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found.double(), expected, atol=2e-2, rtol=2e-2)
