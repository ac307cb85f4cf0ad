"""Triton attention of a decode step: RoPE, storing the new key and value, and attention in one launch.

    out = softmax(R q · [k₀ … R kₜ] · scale) [v₀ … vₜ]      t: position, R: RoPE, kₜ and vₜ: new

One program per slot and key head reads exactly that slot's positions with an online softmax; torch's fused kernel reads a
masked window common to all slots. Where slots and key heads are too few to fill the device, the positions are split over
several programs (flash decoding), and a second launch merges the splits:

    out = Σₚ exp(mₚ − m) aₚ / Σₚ exp(mₚ − m) sₚ      m: highest score, s: sum of weights, a: sum of weighted values
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

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
from tacit.engines.local.packing import next_power_of_two

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
    out: Tensor | None = None,
) -> Tensor:
    """[B, query heads · head_dim]. The heads of a slot must be contiguous; slots may be strided. `splits`: a power of two; 0
    picks it, and the launch options, for the device. `out`: contiguous output memory.

    The two halves of each RoPE pair are adjacent in queries and keys. `rope_B` [B, head_dim / 2, 2]: cos and sin at each slot's
    position, in float32."""
    rows, heads, dim = q_BHD.shape
    kv_heads, capacity = keys_BSGD.shape[2], keys_BSGD.shape[1]
    splits = splits or _choose_splits(rows * kv_heads, q_BHD.device)
    launch = launch or choose_launch(rows * kv_heads * splits, q_BHD.device)
    if out is None:
        out = torch.empty(rows, heads * dim, dtype=q_BHD.dtype, device=q_BHD.device)
    found, peaks = (
        out.new_empty((rows, kv_heads, splits, MIN_DOT, size) if splits > 1 else 0, dtype=torch.float32) for size in (dim, 2)
    )
    from tacit.engines.local.fast.decode_attention_kernels import (  # triton is only installed with a GPU
        decode_attention_kernel,
        merge_splits_kernel,
    )

    decode_attention_kernel[(rows, kv_heads, splits)](
        q_BHD, k_BGD, v_BGD, keys_BSGD, values_BSGD, positions_B, rope_B, out, found, peaks, scale, q_BHD.stride(0),
        k_BGD.stride(0), v_BGD.stride(0), capacity,
        KV=kv_heads, GROUP=heads // kv_heads, PADDED=MIN_DOT, DIM=dim, SPLITS=splits, **launch,
        **early_launch_options(q_BHD.device),
    )  # fmt: skip
    if splits > 1:
        shape = {"KV": kv_heads, "GROUP": heads // kv_heads, "PADDED": MIN_DOT, "DIM": dim, "SPLITS": splits}
        merge_splits_kernel[(rows, heads)](found, peaks, out, **shape, num_warps=1, **early_launch_options(q_BHD.device))
    return out


def choose_launch(programs: int, device: torch.device) -> Mapping[str, int]:
    return FEW if programs <= 2 * _sm_count(device) else MANY


@cache
def _sm_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _choose_splits(programs: int, device: torch.device) -> int:
    """The number of splits that gives every SM something to read."""
    wanted = PROGRAMS_PER_SM * _sm_count(device)
    splits = 1
    while splits < MAX_SPLITS and 2 * splits * programs <= wanted:
        splits *= 2
    return splits


@capability_probe
def has_decode_kernel(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    fits = queries_per_kv <= MIN_DOT and head_dim in (16, 32, 64, 128, 256) and dtype in (torch.bfloat16, torch.float16)
    return fits and is_kernel_usable(
        "decode attention", device, partial(_check_decode_kernel, device, dtype, kv_heads, queries_per_kv, head_dim)
    )


def _check_decode_kernel(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
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
        cached[torch.arange(capacity, device=device) > positions[:, None]] = float("inf")  # which no slot may read
    scale = head_dim**-0.5
    rope = torch.polar(torch.ones(rows, head_dim // 2, device=device), random(rows, head_dim // 2).float())
    rope_cos_sin, old_keys, old_values = torch.view_as_real(rope), keys.clone(), values.clone()
    found = decode_attention(q, k, v, keys, values, positions, rope_cos_sin, scale, 1, FEW)
    for splits, launch in ((1, MANY), (2, FEW), (4, FEW), (MAX_SPLITS, FEW)):
        there = old_keys.clone(), old_values.clone()
        other = decode_attention(q, k, v, there[0], there[1], positions, rope_cos_sin, scale, splits, launch)
        same = torch.equal(there[0], keys) and torch.equal(there[1], values)
        if not (same and torch.allclose(other.float(), found.float(), atol=2e-2, rtol=2e-2)):
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
        if not torch.allclose(found[row].float(), expected.flatten(), atol=2e-2, rtol=2e-2):
            return False
    return True


# Chunked prefill: attention of prompt tokens inside a decode step, in blocks of 16.
#
#     out = softmax(R q · [k₀ … k₍c₋₁₎, R kₒ … R kₜ] · scale) [v₀ … vₜ]      t: the token's position
#
# Tokens 0 … c−1 of the prompt are in the cache from earlier steps; tokens c … t belong to this step. The latter's keys and
# values are read from the step's own tensors, not from the cache, so that no block waits for another.

BLOCK_TOKENS = 16
"""prompt tokens per block, all of one prompt: the smallest side of a tensor-core product"""
BLOCK_FIELDS = 4
"""fields of a block: its slot; the prompt tokens in the cache; the index in the chunk of the prompt's first token of this step;
the number of real tokens in the block, 0 for padding"""
MAX_HEADS = 4
"""query heads per program: with 16 tokens, 64 query rows, the tensor cores' tile"""
BLOCK, FRESH, WARPS = 64, 32, 4
"""cached positions and new tokens per iteration of a program, and its warps"""
LARGE_HEAD = 128
"""head_dim above which three pipeline stages do not fit into the shared memory of every device"""


@dataclass(frozen=True, eq=False)
class PromptChunk:
    """Prompt tokens of one step. Blocks of a prompt are consecutive, and all but the last are full."""

    tokens_C: Tensor
    positions_C: Tensor
    blocks_N4: Tensor
    """see BLOCK_FIELDS"""


@on_tensor_device
def chunk_attention(
    q_CHD: Tensor,
    k_CGD: Tensor,
    v_CGD: Tensor,
    keys_BSGD: Tensor,
    values_BSGD: Tensor,
    blocks_N4: Tensor,
    rope_C: Tensor,
    scale: float,
    out: Tensor,
) -> None:
    """Writes `out` [C, query heads · head_dim], and keys and values into the cache. Layout and RoPE as in
    `decode_attention`."""
    from tacit.engines.local.fast import decode_attention_kernels  # triton is only installed with a GPU

    _, heads, dim = q_CHD.shape
    kv_heads, capacity = keys_BSGD.shape[2], keys_BSGD.shape[1]
    group = heads // kv_heads
    together = min(MAX_HEADS, next_power_of_two(group))
    decode_attention_kernels.chunk_attention_kernel[(len(blocks_N4), kv_heads, -(-group // together))](
        q_CHD, k_CGD, v_CGD, keys_BSGD, values_BSGD, blocks_N4, rope_C, out, scale, q_CHD.stride(0), k_CGD.stride(0),
        v_CGD.stride(0), out.stride(0), capacity,
        KV=kv_heads, GROUP=group, DIM=dim, BLOCK_TOKENS=BLOCK_TOKENS, HEADS=together, BLOCK=BLOCK, FRESH=FRESH,
        num_warps=WARPS, num_stages=3 if dim <= LARGE_HEAD else 2, **early_launch_options(q_CHD.device),
    )  # fmt: skip


def chunk_attention_reference(
    q_CHD: Tensor, k_CGD: Tensor, v_CGD: Tensor, keys_BSGD: Tensor, values_BSGD: Tensor, blocks_N4: Tensor, scale: float
) -> Tensor:
    """The same in torch, with RoPE applied already; reads the blocks on the host."""
    found_CHD, group = torch.zeros_like(q_CHD), q_CHD.shape[1] // k_CGD.shape[1]
    for number, (slot, cached, begin, count) in enumerate(blocks_N4.tolist()):
        if not count:
            continue
        own, end = number * BLOCK_TOKENS, number * BLOCK_TOKENS + count
        k, v = (
            torch.cat((there[slot, :cached], new[begin:end])).transpose(0, 1).repeat_interleave(group, 0)
            for there, new in ((keys_BSGD, k_CGD), (values_BSGD, v_CGD))
        )
        sees = torch.arange(k.shape[1], device=k.device) <= cached - begin + torch.arange(own, end, device=k.device)[:, None]
        found = scaled_dot_product_attention(q_CHD[own:end].transpose(0, 1), k, v, attn_mask=sees, scale=scale)
        found_CHD[own:end] = found.transpose(0, 1)
        for there, new in ((keys_BSGD, k_CGD), (values_BSGD, v_CGD)):
            there[slot, cached + own - begin : cached + end - begin] = new[own:end]
    return found_CHD.flatten(1)


@capability_probe
def has_chunk_kernel(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    fits = head_dim in (16, 32, 64, 128, 256) and dtype in (torch.bfloat16, torch.float16)
    return fits and is_kernel_usable(
        "chunked prefill attention", device, partial(_check_chunk_kernel, device, dtype, kv_heads, queries_per_kv, head_dim)
    )


TRIAL = (
    *((2, 0, 0, 16), (2, 0, 0, 16), (2, 0, 0, 3)),
    *((0, 150, 48, 16), (0, 150, 48, 16), (0, 0, 0, 0), (3, 1, 96, 1), (1, 64, 112, 9)),
)
"""test blocks: a new prompt, one that continues, padding, a single token, and one behind a full block of cached positions"""


def _check_chunk_kernel(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    """Compare with the reference; whatever may not be read is infinite."""
    random = make_random(device, dtype)
    blocks_N4, rows, capacity, scale = torch.tensor(TRIAL, device=device), 4, 320, head_dim**-0.5
    tokens = len(TRIAL) * BLOCK_TOKENS
    q, k, v = (random(tokens, kv_heads * size, head_dim) for size in (queries_per_kv, 1, 1))
    keys, values = (random(rows, capacity, kv_heads, head_dim) for _ in range(2))
    real, used = (
        (torch.arange(BLOCK_TOKENS, device=device) < blocks_N4[:, 3:]).flatten(),
        blocks_N4[:, 3].repeat_interleave(BLOCK_TOKENS) > 0,
    )
    for slot, cached, _, count in TRIAL:
        for there in (keys, values):
            there[slot, cached if count else capacity :] = float("inf")
    for new in (q, k, v):
        new[~real] = float("inf")
    rope = torch.polar(torch.ones(tokens, head_dim // 2, device=device), random(tokens, head_dim // 2).float())
    found = torch.full((tokens, q[0].numel()), float("nan"), dtype=dtype, device=device)
    new_keys, new_values = keys.clone(), values.clone()
    chunk_attention(q, k, v, new_keys, new_values, blocks_N4, torch.view_as_real(rope), scale, found)
    q, k = (SamplerOps.apply_rope(x, rope[:, None]) for x in (q, k))
    q, k, v, keys, values = (x.float() for x in (q, k, v, keys, values))
    expected = chunk_attention_reference(q, k, v, keys, values, blocks_N4, scale)
    return (
        torch.allclose(found[real].float(), expected[real], atol=2e-2, rtol=2e-2)
        and bool(torch.isfinite(found).all())
        and not found[~used].any()
        and torch.allclose(new_keys.float(), keys, atol=2e-2, rtol=2e-2)
        and torch.equal(new_values.float(), values)
    )


class MixedInputs(NamedTuple):
    """Everything but the queries; slots come first, then prompt tokens."""

    k_NGD: Tensor
    v_NGD: Tensor
    keys_BSGD: Tensor
    values_BSGD: Tensor
    """the cache, which also receives the new keys and values"""
    positions_B: Tensor
    """of the slots"""
    blocks_N4: Tensor
    """of the prompt chunk"""
    rope_N: Tensor
    scale: float


def mixed_attention(q_NHD: Tensor, beside: MixedInputs) -> Tensor:
    """[N, query heads · head_dim] of decoding slots and of prompt blocks, which read nothing that the other writes."""
    k_NGD, v_NGD, keys_BSGD, values_BSGD, positions_B, blocks_N4, rope_N, scale = beside
    out_NF, rows = torch.empty(len(q_NHD), q_NHD[0].numel(), dtype=q_NHD.dtype, device=q_NHD.device), len(positions_B)
    (q, k, v, rope, out), (q_C, k_C, v_C, turns_C, out_C) = zip(
        *((x[:rows], x[rows:]) for x in (q_NHD, k_NGD, v_NGD, rope_N, out_NF)), strict=True
    )
    decode_attention(q, k, v, keys_BSGD, values_BSGD, positions_B, rope, scale, out=out)
    chunk_attention(q_C, k_C, v_C, keys_BSGD, values_BSGD, blocks_N4, turns_C, scale, out_C)
    return out_NF
