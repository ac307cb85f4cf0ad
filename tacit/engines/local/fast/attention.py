"""Attention of the fast paths: of decode steps over the KV cache, and of packed (varlen) sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tacit.engines.local.fast.kernels import (
    HOPPER,
    capability_probe,
    is_kernel_usable,
    make_random,
    nvidia_generation,
    on_tensor_device,
    pdl_options,
)
from tacit.engines.local.fast.layers import SamplerOps
from tacit.engines.local.memory import is_out_of_memory
from tacit.engines.local.packing import to_device

# Decode steps: RoPE, storing the new key and value, and attention in one launch.
#
#     out = softmax(R q · [k₀ … R kₜ] · scale) [v₀ … vₜ]      t: position, R: RoPE, kₜ and vₜ: new
#
# One program per slot and key head reads exactly that slot's positions, with an online softmax; torch's fused kernel reads a
# masked window common to all slots. If slots and key heads are too few to fill the GPU, the positions are split over several
# programs (flash decoding), and a second launch merges the splits:
#
#     out = Σₚ exp(mₚ − m) aₚ / Σₚ exp(mₚ − m) sₚ      m: highest score, s: sum of weights, a: sum of weighted values

MIN_DOT = 16  # smallest side of a tensor-core product; the query heads of a key head are padded to it
PROGRAMS_PER_SM = 1.5
"""programs that keep one SM busy; more splits cost more than they save. For 523 positions, 1, 2 and 4 splits take
12.9, 11.0 and 9.5 µs with 16 slots of two heads of 128, and 14.9, 16.4 and 18.1 µs with 64, on an H200 with 132 SMs"""
MAX_SPLITS = 8
FEW_PROGRAMS = {"BLOCK": 64, "num_warps": 4, "num_stages": 3}
MANY_PROGRAMS = {"BLOCK": 32, "num_warps": 2, "num_stages": 4}
"""positions per block, warps and pipeline stages, up to two programs per SM and above; there, small programs share it better.
For 523 positions the two take 14.3 and 15.2 µs with 64 slots of two heads of 128, and 44.8 and 37.5 with 256; for
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
    slots, heads, dim = q_BHD.shape
    kv_heads, capacity = keys_BSGD.shape[2], keys_BSGD.shape[1]
    splits = splits or choose_splits(slots * kv_heads, q_BHD.device)
    launch = launch or (FEW_PROGRAMS if slots * kv_heads * splits <= 2 * count_sms(q_BHD.device) else MANY_PROGRAMS)
    out = torch.empty(slots, heads * dim, dtype=q_BHD.dtype, device=q_BHD.device)
    split_sums, split_stats = (
        out.new_empty((slots, kv_heads, splits, MIN_DOT, size) if splits > 1 else 0, dtype=torch.float32) for size in (dim, 2)
    )
    from tacit.engines.local.fast.triton_kernels import (  # triton is only installed with a GPU
        decode_attention_kernel,
        merge_splits_kernel,
    )

    decode_attention_kernel[(slots, kv_heads, splits)](
        q_BHD, k_BGD, v_BGD, keys_BSGD, values_BSGD, positions_B, rope_B, out, split_sums, split_stats, scale, q_BHD.stride(0),
        k_BGD.stride(0), v_BGD.stride(0), capacity,
        KV=kv_heads, GROUP=heads // kv_heads, PADDED=MIN_DOT, DIM=dim, SPLITS=splits, **launch,
        **pdl_options(q_BHD.device),
    )  # fmt: skip
    if splits > 1:
        shape = {"KV": kv_heads, "GROUP": heads // kv_heads, "PADDED": MIN_DOT, "DIM": dim, "SPLITS": splits}
        merge_splits_kernel[(slots, heads)](split_sums, split_stats, out, **shape, num_warps=1, **pdl_options(q_BHD.device))
    return out


@cache
def count_sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def choose_splits(programs: int, device: torch.device) -> int:
    """Number of splits, a power of two, that keeps all SMs busy."""
    target = PROGRAMS_PER_SM * count_sms(device)
    splits = 1
    while splits < MAX_SPLITS and 2 * splits * programs <= target:
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
    result = decode_attention(q, k, v, keys, values, positions, rope_cos_sin, scale, 1, FEW_PROGRAMS)
    for splits, launch in ((1, MANY_PROGRAMS), (2, FEW_PROGRAMS), (4, FEW_PROGRAMS), (MAX_SPLITS, FEW_PROGRAMS)):
        new_keys, new_values = old_keys.clone(), old_values.clone()
        other = decode_attention(q, k, v, new_keys, new_values, positions, rope_cos_sin, scale, splits, launch)
        same_cache = torch.equal(new_keys, keys) and torch.equal(new_values, values)
        if not (same_cache and torch.allclose(other.float(), result.float(), atol=2e-2, rtol=2e-2)):
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


# Causal varlen attention: query i of a sequence sees its keys 0 … (number of keys − number of queries) + i, so the queries are
# its last tokens, and the keys may start earlier, e.g. in a shared prompt. Uses torch's flash attention (GPUs, half precision),
# a Triton kernel for keys in the KV cache (Hopper), or a loop over sequences in plain torch.


@dataclass(frozen=True, eq=False)
class SequenceLayout:
    """Positions of the sequences. The queries of sequence b are `cu_seqlens_q[b]` to `cu_seqlens_q[b + 1]`. Its keys are
    `starts_k[b]` to `starts_k[b + 1]` or, in a KV cache, the `keys_B[b]` keys from `starts_k[b]`."""

    cu_seqlens_q: Tensor
    starts_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    keys_B: Tensor | None = None
    blocks_N5: Tensor | None = None  # in a KV cache: the blocks of the prefix kernel (see `split_into_blocks`)

    @staticmethod
    def of(queries_B: np.ndarray, keys_B: np.ndarray, device: torch.device) -> SequenceLayout:
        """Sequences with these numbers of queries and keys, concatenated."""
        starts_q, starts_k = (to_device(_cumulative(lengths), device) for lengths in (queries_B, keys_B))
        return SequenceLayout(starts_q, starts_k, int(queries_B.max()), int(keys_B.max()))

    @staticmethod
    def in_cache(queries_B: np.ndarray, keys_B: np.ndarray, starts_B: np.ndarray, device: torch.device) -> SequenceLayout:
        """Sequences whose keys start at these positions of a KV cache."""
        starts_q, starts_k, counts_B, blocks_N5 = (
            to_device(x.astype(np.int32), device)
            for x in (_cumulative(queries_B), starts_B, keys_B, split_into_blocks(queries_B, keys_B, starts_B))
        )
        return SequenceLayout(starts_q, starts_k, int(queries_B.max()), int(keys_B.max()), counts_B, blocks_N5)


def _cumulative(lengths_B: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths_B)]).astype(np.int32)


def max_blocks(tokens: int, rows: int) -> int:
    """An upper bound on the blocks of `rows` sequences with `tokens` queries in total."""
    return tokens // LAUNCH["BLOCK_Q"] + rows


def split_into_blocks(queries_B: np.ndarray, keys_B: np.ndarray, starts_k: np.ndarray) -> np.ndarray:
    """[blocks, 5] int32: first query of the block within its sequence, start and number of the sequence's queries, start and
    number of its keys. No block is empty. Blocks that see the most keys come first, so that short programs finish last."""
    size = LAUNCH["BLOCK_Q"]
    counts_B = -(-queries_B // size)
    rows_N = np.repeat(np.arange(len(queries_B)), counts_B)
    first_N = (np.arange(len(rows_N)) - np.repeat(_cumulative(counts_B)[:-1], counts_B)) * size
    queries_N, keys_N = queries_B[rows_N], keys_B[rows_N]
    seen_N = keys_N - queries_N + np.minimum(first_N + size, queries_N)  # by the block's last query
    table_N5 = np.stack([first_N, _cumulative(queries_B)[rows_N], queries_N, starts_k[rows_N], keys_N], 1)
    return table_N5[np.argsort(-seen_N, kind="stable")].astype(np.int32)


# Prefix reuse: the keys of a prompt's cached prefix and of its new tokens are read in place, from scattered slots of the KV
# cache.
#
#     oᵢ = Σⱼ pᵢⱼ vⱼ,   pᵢⱼ = exp sᵢⱼ / Σⱼ exp sᵢⱼ,   sᵢⱼ = scale qᵢ·kⱼ        over the keys j that query i sees

HEAD_DIMS = (64, 128)
LAUNCH = {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}
"""launch options for these head_dims on a Hopper GPU"""


@on_tensor_device
def attend_prefix(q_QHD: Tensor, k_KGD: Tensor, v_KGD: Tensor, layout: SequenceLayout, scale: float) -> Tensor:
    """[Q, heads, head_dim] for a layout in a KV cache; without gradient."""
    from tacit.engines.local.fast.triton_kernels import prefix_attention_kernel  # Triton comes with CUDA only

    (_, heads, dim), blocks_N5 = q_QHD.shape, layout.blocks_N5
    assert blocks_N5 is not None
    out_QHD = q_QHD.new_zeros(q_QHD.shape)  # padding of a recorded prefill has no block
    # token and head strides: each tensor may be a slice of a wider one
    strides = [stride for tensor in (q_QHD, k_KGD, v_KGD) for stride in tensor.stride()[:2]]
    if len(blocks_N5):
        prefix_attention_kernel[(len(blocks_N5) * heads,)](
            q_QHD, k_KGD, v_KGD, out_QHD, blocks_N5, *strides, scale * math.log2(math.e),
            HEADS=heads, GROUP=heads // k_KGD.shape[1], DIM=dim, **LAUNCH,
        )  # fmt: skip
    return out_QHD


@capability_probe
def has_flash_attention(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether torch's flash attention runs here (half precision on a GPU); tried once."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    try:
        probe = torch.zeros(4, 2, head_dim, device=device, dtype=dtype)
        lengths = np.array([1, 3])
        _FlashVarlenAttention.apply(probe, probe[:, :1], probe[:, :1], SequenceLayout.of(lengths, lengths, device), 1.0)
    except (RuntimeError, AttributeError, TypeError) as error:
        if is_out_of_memory(error):  # must not be cached: it says nothing about the kernel
            raise
        return False
    return True


@capability_probe
def has_prefix_kernel(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    """Whether prompts can continue from cached prefixes: on a Hopper GPU, which LAUNCH is tuned for."""
    fits = head_dim in HEAD_DIMS and has_flash_attention(device, dtype, head_dim) and nvidia_generation(device) == HOPPER
    return fits and is_kernel_usable(
        "prefix attention", device, partial(_prefix_matches_torch, device, dtype, heads, key_heads, head_dim)
    )


def attend_varlen(q_QHD: Tensor, k_KGD: Tensor, v_KGD: Tensor, layout: SequenceLayout, scale: float) -> Tensor:
    """[Q, heads, head_dim]; H / G query heads share a key head. Scoring, updates and prefill of whole prompts use the same
    kernel, so importance ratios compare the same numbers."""
    device, dtype, (_, heads, dim) = q_QHD.device, q_QHD.dtype, q_QHD.shape
    if layout.keys_B is not None and has_prefix_kernel(device, dtype, heads, k_KGD.shape[1], dim):
        return attend_prefix(q_QHD, k_KGD, v_KGD, layout, scale)
    if layout.keys_B is None and has_flash_attention(device, dtype, dim):
        return _FlashVarlenAttention.apply(q_QHD, k_KGD, v_KGD, layout, scale)
    return attend_row_by_row(q_QHD, k_KGD, v_KGD, layout, scale)


def _prefix_matches_torch(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    """Compare with torch: sequences of one token and of several blocks, one with more keys than queries and one without
    queries, strided heads, scores from flat to sharp. Keys that no query may read are infinite."""
    generator, capacity = torch.Generator(device).manual_seed(0), 320
    queries_B, keys_B, starts_B = np.array([1, 150, 0, 131]), np.array([1, 150, 4, 300]), np.array([2, 0, 3, 1]) * capacity
    layout = SequenceLayout.in_cache(queries_B, keys_B, starts_B, device)

    def random_heads(tokens: int, heads: int) -> Tensor:
        wide = torch.randn(tokens, heads + 1, head_dim, generator=generator, device=device)
        return (wide * torch.logspace(-1, 0.3, tokens, device=device)[:, None, None]).to(dtype)[:, 1:]

    q, k, v = (random_heads(n, h) for n, h in ((282, heads), (4 * capacity, key_heads), (4 * capacity, key_heads)))
    for start, count in zip(starts_B.tolist(), keys_B.tolist(), strict=True):
        for cached in (k, v):
            cached[start + count : start + capacity] = float("inf")
    result = attend_prefix(q, k, v, layout, head_dim**-0.5).float()
    with sdpa_kernel(SDPBackend.MATH):  # other backends warn in deterministic mode
        expected = attend_row_by_row(q.float(), k.float(), v.float(), layout, head_dim**-0.5)
    # softmax weights and outputs are rounded
    return bool((result - expected).abs().max() <= (4 * torch.finfo(dtype).eps + 1e-5) * expected.abs().max())


class _FlashVarlenAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float) -> Tensor:
        ctx.seqlens, ctx.scale = (layout.cu_seqlens_q, layout.starts_k, layout.max_seqlen_q, layout.max_seqlen_k), scale
        results = torch.ops.aten._flash_attention_forward(q, k, v, *ctx.seqlens, 0.0, True, False, scale=scale)
        out, logsumexp, seed, offset, _ = results
        ctx.save_for_backward(q, k, v, out, logsumexp, seed, offset)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, logsumexp, seed, offset = ctx.saved_tensors
        with _strict_determinism():
            input_gradients = torch.ops.aten._flash_attention_backward(
                gradients[0].contiguous(), q, k, v, out, logsumexp, *ctx.seqlens, 0.0, True, seed, offset, scale=ctx.scale
            )
        return *input_gradients, None, None


@contextmanager
def _strict_determinism() -> Iterator[None]:
    """Turn `warn_only` off in deterministic mode: with it on, torch's flash backward warns and is not deterministic."""
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if warns:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        if warns:
            torch.use_deterministic_algorithms(True, warn_only=True)


def attend_row_by_row(q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float) -> Tensor:
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    outputs = []
    starts_q, starts_k = layout.cu_seqlens_q.tolist(), layout.starts_k.tolist()
    ends_k = starts_k[1:] if layout.keys_B is None else (layout.starts_k + layout.keys_B).tolist()
    for start_q, end_q, start_k, end_k in zip(starts_q, starts_q[1:], starts_k, ends_k, strict=False):
        queries, keys = end_q - start_q, end_k - start_k
        if not queries:
            continue
        visible = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril_(keys - queries)
        q_HQD, k_HKD, v_HKD = (x.transpose(0, 1) for x in (q[start_q:end_q], k[start_k:end_k], v[start_k:end_k]))
        outputs.append(scaled_dot_product_attention(q_HQD, k_HKD, v_HKD, attn_mask=visible, scale=scale).transpose(0, 1))
        if queries > keys:
            outputs[-1][: queries - keys] = 0  # queries that see no key
    return torch.cat(outputs)
