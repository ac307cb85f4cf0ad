"""Causal varlen attention: sequences of different lengths concatenated without padding.

    query i of a sequence sees its keys 0 … (number of keys − number of queries) + i

so the queries are the last tokens of a sequence whose keys may start earlier, e.g. in a shared prompt. Uses torch's flash
attention (GPUs, half precision), a Triton kernel for keys in the KV cache (Hopper), or a loop over sequences in plain torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tacit.engines.local.fast.kernels import HOPPER, capability_probe, is_kernel_usable, nvidia_generation, on_tensor_device
from tacit.engines.local.memory import is_out_of_memory
from tacit.engines.local.packing import to_device


@dataclass(frozen=True, eq=False)
class SequenceLayout:
    """Positions of the sequences. The queries of sequence b are `cu_seqlens_q[b]` to `cu_seqlens_q[b + 1]`. Its keys are
    `starts_k[b]` to `starts_k[b + 1]` or, in a KV cache, the `keys_B[b]` keys from `starts_k[b]`."""

    cu_seqlens_q: Tensor
    starts_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    keys_B: Tensor | None = None
    blocks_N5: Tensor | None = None
    """in a KV cache: the blocks of the prefix kernel (see `split_into_blocks`)"""

    @staticmethod
    def of(queries_B: np.ndarray, keys_B: np.ndarray, device: torch.device) -> SequenceLayout:
        """Sequences with these numbers of queries and keys, concatenated."""
        starts_q, starts_k = (to_device(_cumulative(lengths), device) for lengths in (queries_B, keys_B))
        return SequenceLayout(starts_q, starts_k, int(queries_B.max()), int(keys_B.max()))

    @staticmethod
    def in_cache(queries_B: np.ndarray, keys_B: np.ndarray, starts_B: np.ndarray, device: torch.device) -> SequenceLayout:
        """Sequences whose keys start at these positions of a KV cache."""
        starts_q, starts_k, number_B, blocks_N5 = (
            to_device(x.astype(np.int32), device)
            for x in (_cumulative(queries_B), starts_B, keys_B, split_into_blocks(queries_B, keys_B, starts_B))
        )
        return SequenceLayout(starts_q, starts_k, int(queries_B.max()), int(keys_B.max()), number_B, blocks_N5)


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
    from tacit.engines.local.fast.attention_kernels import prefix_attention_kernel  # Triton comes with CUDA only

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
    if head_dim not in HEAD_DIMS or not has_flash_attention(device, dtype, head_dim):
        return False
    if nvidia_generation(device) != HOPPER:
        return False
    return is_kernel_usable("prefix attention", device, partial(_matches_torch, device, dtype, heads, key_heads, head_dim))


def attend_varlen(q_QHD: Tensor, k_KGD: Tensor, v_KGD: Tensor, layout: SequenceLayout, scale: float) -> Tensor:
    """[Q, heads, head_dim]; H / G query heads share a key head. Scoring, updates and prefill of whole prompts use the same
    kernel, so importance ratios compare the same numbers."""
    device, dtype, (_, heads, dim) = q_QHD.device, q_QHD.dtype, q_QHD.shape
    if layout.keys_B is not None and has_prefix_kernel(device, dtype, heads, k_KGD.shape[1], dim):
        return attend_prefix(q_QHD, k_KGD, v_KGD, layout, scale)
    if layout.keys_B is None and has_flash_attention(device, dtype, dim):
        return _FlashVarlenAttention.apply(q_QHD, k_KGD, v_KGD, layout, scale)
    return attend_row_by_row(q_QHD, k_KGD, v_KGD, layout, scale)


def _matches_torch(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    """Compare with torch: sequences of one token and of several blocks, one with more keys than queries and one without
    queries, strided heads, scores from flat to sharp. Keys that no query may read are infinite."""
    generator, capacity = torch.Generator(device).manual_seed(0), 320
    queries_B, keys_B, starts_B = np.array([1, 150, 0, 131]), np.array([1, 150, 4, 300]), np.array([2, 0, 3, 1]) * capacity
    layout = SequenceLayout.in_cache(queries_B, keys_B, starts_B, device)

    def drawn(tokens: int, heads: int) -> Tensor:
        wide = torch.randn(tokens, heads + 1, head_dim, generator=generator, device=device)
        return (wide * torch.logspace(-1, 0.3, tokens, device=device)[:, None, None]).to(dtype)[:, 1:]

    q, k, v = (drawn(n, h) for n, h in ((282, heads), (4 * capacity, key_heads), (4 * capacity, key_heads)))
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
        rows = (layout.cu_seqlens_q, layout.starts_k, layout.max_seqlen_q, layout.max_seqlen_k)
        results = torch.ops.aten._flash_attention_forward(q, k, v, *rows, 0.0, True, False, scale=scale)
        out, logsumexp, seed, offset, _ = results
        ctx.save_for_backward(q, k, v, out, logsumexp, seed, offset)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v, out, logsumexp, seed, offset), layout = ctx.saved_tensors, ctx.layout
        rows = (layout.cu_seqlens_q, layout.starts_k, layout.max_seqlen_q, layout.max_seqlen_k)
        with _strict_determinism():
            input_gradients = torch.ops.aten._flash_attention_backward(
                gradients[0].contiguous(), q, k, v, out, logsumexp, *rows, 0.0, True, seed, offset, scale=ctx.scale
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
    answers = []
    starts_q, starts_k = layout.cu_seqlens_q.tolist(), layout.starts_k.tolist()
    ends_k = starts_k[1:] if layout.keys_B is None else (layout.starts_k + layout.keys_B).tolist()
    for a, b, c, d in zip(starts_q, starts_q[1:], starts_k, ends_k, strict=False):
        if a == b:
            continue
        seen = torch.ones(b - a, d - c, dtype=torch.bool, device=q.device).tril_(d - c - (b - a))
        row = scaled_dot_product_attention(
            q[a:b].transpose(0, 1), k[c:d].transpose(0, 1), v[c:d].transpose(0, 1), attn_mask=seen, scale=scale
        )
        answers.append(row.transpose(0, 1))
        if b - a > d - c:
            answers[-1][: b - a - (d - c)] = 0  # queries that see no key
    return torch.cat(answers)
