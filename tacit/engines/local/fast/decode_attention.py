"""Triton attention of a decode step: RoPE, storing the new key and value, and attention in one launch.

    out = softmax(R q · [k₀ … R kₜ] · scale) [v₀ … vₜ]      t: position, R: RoPE, kₜ and vₜ: new

One program per slot and key head reads exactly that slot's positions, with an online softmax; torch's fused kernel reads a
masked window common to all slots. If slots and key heads are too few to fill the GPU, the positions are split over several
programs (flash decoding), and a second launch merges the splits:

    out = Σₚ exp(mₚ − m) aₚ / Σₚ exp(mₚ − m) sₚ      m: highest score, s: sum of weights, a: sum of weighted values
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tacit.engines.local.fast.compiled import SamplerOps
from tacit.engines.local.fast.kernels import (
    capability_probe,
    early_launch_options,
    is_kernel_usable,
    make_random,
    on_tensor_device,
)

MIN_DOT = 16
"""smallest side of a tensor-core product; the query heads of a key head are padded to it"""
PROGRAMS_PER_SM = 1.5
"""programs that keep one SM busy; more splits cost more than they save. For 523 positions, 1, 2 and 4 splits take
12.9, 11.0 and 9.5 µs with 16 slots of two heads of 128, and 14.9, 16.4 and 18.1 µs with 64, on an H200 with 132 SMs"""
MAX_SPLITS = 8
FEW = {"BLOCK": 64, "num_warps": 4, "num_stages": 3}
MANY = {"BLOCK": 32, "num_warps": 2, "num_stages": 4}
"""positions per block, warps and pipeline stages, for few and for many programs: above two programs per SM small ones share it
better. For 523 positions FEW and MANY take 14.3 and 15.2 µs with 64 slots of two heads of 128, and 44.8 and 37.5 with 256; for
three heads of 64 12.2 and 12.5, and 38.7 and 29.6"""


@on_tensor_device
def decode_attention(
    q_BHD: Tensor,
    k_BGD: Tensor,
    v_BGD: Tensor,
    keys_BSGD: Tensor,
    values_BSGD: Tensor,
    positions_B: Tensor,
    rope_B: Tensor,
    scale: float,
    splits: int = 0,
    launch: Mapping[str, int] | None = None,
) -> Tensor:
    """[B, query heads · head_dim]. The heads of a slot must be contiguous; slots may be strided. `splits`: a power of two; 0
    picks it, and the launch options, for the device.

    The two halves of each RoPE pair are adjacent in queries and keys. `rope_B` [B, head_dim / 2, 2]: cos and sin at each slot's
    position, in float32."""
    rows, heads, dim = q_BHD.shape
    kv_heads, capacity = keys_BSGD.shape[2], keys_BSGD.shape[1]
    splits = splits or choose_splits(rows * kv_heads, q_BHD.device)
    launch = launch or (FEW if rows * kv_heads * splits <= 2 * count_sms(q_BHD.device) else MANY)
    out = torch.empty(rows, heads * dim, dtype=q_BHD.dtype, device=q_BHD.device)
    partial_sums, peaks = (
        out.new_empty((rows, kv_heads, splits, MIN_DOT, size) if splits > 1 else 0, dtype=torch.float32) for size in (dim, 2)
    )
    from tacit.engines.local.fast.attention_kernels import (  # triton is only installed with a GPU
        decode_attention_kernel,
        merge_splits_kernel,
    )

    decode_attention_kernel[(rows, kv_heads, splits)](
        q_BHD, k_BGD, v_BGD, keys_BSGD, values_BSGD, positions_B, rope_B, out, partial_sums, peaks, scale, q_BHD.stride(0),
        k_BGD.stride(0), v_BGD.stride(0), capacity,
        KV=kv_heads, GROUP=heads // kv_heads, PADDED=MIN_DOT, DIM=dim, SPLITS=splits, **launch,
        **early_launch_options(q_BHD.device),
    )  # fmt: skip
    if splits > 1:
        shape = {"KV": kv_heads, "GROUP": heads // kv_heads, "PADDED": MIN_DOT, "DIM": dim, "SPLITS": splits}
        merge_splits_kernel[(rows, heads)](partial_sums, peaks, out, **shape, num_warps=1, **early_launch_options(q_BHD.device))
    return out


@cache
def count_sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def choose_splits(programs: int, device: torch.device) -> int:
    """Number of splits, a power of two, that keeps all SMs busy."""
    wanted = PROGRAMS_PER_SM * count_sms(device)
    splits = 1
    while splits < MAX_SPLITS and 2 * splits * programs <= wanted:
        splits *= 2
    return splits


@capability_probe
def has_decode_kernel(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    fits = queries_per_kv <= MIN_DOT and head_dim in (16, 32, 64, 128, 256) and dtype in (torch.bfloat16, torch.float16)
    return fits and is_kernel_usable(
        "decode attention", device, partial(check_decode_kernel, device, dtype, kv_heads, queries_per_kv, head_dim)
    )


def check_decode_kernel(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    random = make_random(device, dtype)
    positions = torch.tensor([0, 1, 150, 299], device=device)
    rows, capacity = len(positions), 320
    q, k, v = (
        random(rows, kv_heads * queries_per_kv, head_dim),
        random(rows, kv_heads, head_dim),
        random(rows, kv_heads, head_dim),
    )
    keys, values = random(rows, capacity, kv_heads, head_dim), random(rows, capacity, kv_heads, head_dim)
    for cached in (keys, values):
        cached[torch.arange(capacity, device=device) > positions[:, None]] = float("inf")  # must not be read
    scale = head_dim**-0.5
    rope = torch.polar(torch.ones(rows, head_dim // 2, device=device), random(rows, head_dim // 2).float())
    rope_cos_sin, old_keys, old_values = torch.view_as_real(rope), keys.clone(), values.clone()
    result = decode_attention(q, k, v, keys, values, positions, rope_cos_sin, scale, 1, FEW)
    for splits, launch in ((1, MANY), (2, FEW), (4, FEW), (MAX_SPLITS, FEW)):
        there = old_keys.clone(), old_values.clone()
        other = decode_attention(q, k, v, there[0], there[1], positions, rope_cos_sin, scale, splits, launch)
        same = torch.equal(there[0], keys) and torch.equal(there[1], values)
        if not (same and torch.allclose(other.float(), result.float(), atol=2e-2, rtol=2e-2)):
            return False
    q, k = (SamplerOps.apply_rope(x, rope[:, None]) for x in (q, k))
    for row, position in enumerate(positions.tolist()):
        own_k, own_v = keys[row, : position + 1].float(), values[row, : position + 1].float()
        close = torch.allclose(own_k[-1], k[row].float(), atol=2e-2, rtol=2e-2)
        if not (close and torch.equal(own_v[-1], v[row].float())):
            return False
        expected = scaled_dot_product_attention(
            q[row].float().view(kv_heads, queries_per_kv, head_dim), own_k.transpose(0, 1), own_v.transpose(0, 1), scale=scale
        )
        if not torch.allclose(result[row].float(), expected.flatten(), atol=2e-2, rtol=2e-2):
            return False
    return True
