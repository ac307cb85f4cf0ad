"""Causal varlen attention: sequences of different lengths concatenated without padding.

    query i of a sequence sees its keys 0 … (number of keys − number of queries) + i

so the queries are the last tokens of a sequence whose keys may start earlier, e.g. in a shared prompt. Runs the Triton kernels
(Hopper), torch's flash attention (other GPUs, half precision), or a loop over sequences in plain torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tacit.engines.local.fast.kernels import HOPPER, capability_probe, is_kernel_usable, nvidia_generation, on_tensor_device
from tacit.engines.local.memory import is_out_of_memory
from tacit.engines.local.packing import to_device


@dataclass(frozen=True, eq=False)
class SequenceLayout:
    """Where the sequences are. The queries of sequence b are `cu_seqlens_q[b]` to `cu_seqlens_q[b + 1]`. Its keys are
    `starts_k[b]` to `starts_k[b + 1]` or, in a KV cache, the `keys_B[b]` keys from `starts_k[b]`."""

    cu_seqlens_q: Tensor
    starts_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    lengths: tuple[np.ndarray, np.ndarray] | None = None
    """of each sequence's queries and keys, if known on the host"""
    blocks: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    """block tables by ("queries" or "keys", block size), computed on demand"""
    keys_B: Tensor | None = None

    @staticmethod
    def of(queries_B: np.ndarray, keys_B: np.ndarray, device: torch.device) -> SequenceLayout:
        """Sequences with these numbers of queries and keys, concatenated."""
        starts_q, starts_k = (to_device(_cumulative(lengths), device) for lengths in (queries_B, keys_B))
        return SequenceLayout(starts_q, starts_k, int(queries_B.max()), int(keys_B.max()), (queries_B, keys_B))

    @staticmethod
    def in_cache(
        queries_B: np.ndarray, keys_B: np.ndarray, starts_B: np.ndarray, block: int, device: torch.device
    ) -> SequenceLayout:
        """Sequences whose keys start at these positions of a KV cache. `block`: the kernel's query block size, or 0."""
        starts_q, starts_k, number_B = (
            to_device(x.astype(np.int32), device) for x in (_cumulative(queries_B), starts_B, keys_B)
        )
        tables = {("queries", block): split_into_blocks(queries_B, keys_B, "queries", block, starts_B)} if block else {}
        blocks = {key: to_device(table, device) for key, table in tables.items()}
        return SequenceLayout(starts_q, starts_k, int(queries_B.max()), int(keys_B.max()), blocks=blocks, keys_B=number_B)

    def get_blocks(self, what: str, size: int) -> Tensor:
        """[blocks, 5] on the device (see `split_into_blocks`); cached, since every layer needs the same."""
        if (what, size) not in self.blocks:
            assert self.lengths is not None
            self.blocks[what, size] = to_device(split_into_blocks(*self.lengths, what, size), self.cu_seqlens_q.device)
        return self.blocks[what, size]


def _cumulative(lengths_B: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths_B)]).astype(np.int32)


def max_blocks(tokens: int, rows: int, size: int) -> int:
    """An upper bound on the blocks of `rows` sequences with `tokens` tokens in total."""
    return tokens // size + rows


def split_into_blocks(
    queries_B: np.ndarray, keys_B: np.ndarray, what: str, size: int, starts_k: np.ndarray | None = None
) -> np.ndarray:
    """[blocks, 5]: first token of the block within its sequence, start and number of the sequence's queries, start and number
    of its keys. `what` is blocked: "queries" or "keys". No block is empty. Blocks with the most work come first, so the last
    programs to finish are short ones."""
    lengths_B = queries_B if what == "queries" else keys_B
    counts_B = -(-lengths_B // size)
    rows_N = np.repeat(np.arange(len(lengths_B)), counts_B)
    first_N = (np.arange(len(rows_N)) - np.repeat(_cumulative(counts_B)[:-1], counts_B)) * size
    queries_N, keys_N = queries_B[rows_N], keys_B[rows_N]
    if what == "queries":  # keys visible to the block's last query
        work_N = keys_N - queries_N + np.minimum(first_N + size, queries_N)
    else:  # queries that see a key of the block
        work_N = queries_N - np.maximum(first_N - (keys_N - queries_N), 0)
    starts_k = _cumulative(keys_B) if starts_k is None else starts_k
    table_N5 = np.stack([first_N, _cumulative(queries_B)[rows_N], queries_N, starts_k[rows_N], keys_N], 1)
    return table_N5[np.argsort(-work_N, kind="stable")].astype(np.int32)


# Triton kernels for Hopper GPUs, on which torch's flash attention leaves most of the tensor cores idle:
#
#     oᵢ = Σⱼ pᵢⱼ vⱼ,   pᵢⱼ = exp(sᵢⱼ − lᵢ),   sᵢⱼ = scale qᵢ·kⱼ,   lᵢ = log Σⱼ exp sᵢⱼ        over the keys j that query i sees
#     dvⱼ = Σᵢ pᵢⱼ doᵢ       dsᵢⱼ = pᵢⱼ (doᵢ·vⱼ − δᵢ),   δᵢ = oᵢ·doᵢ       dqᵢ = scale Σⱼ dsᵢⱼ kⱼ       dkⱼ = scale Σᵢ dsᵢⱼ qᵢ
#
# The backward pass recomputes p from l. One program owns each query's sum and each key's sum (over all heads that share it), so
# there are no atomics and the order of every sum is fixed: results are deterministic.

Launch = Mapping[str, int]

LAUNCHES: dict[int, dict[str, Launch]] = {
    64: {
        "forward": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
        "backward_q": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
        "backward_kv": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
    },
    128: {
        "forward": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
        "backward_q": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2},
        "backward_kv": {"BLOCK_Q": 32, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
    },
}
"""by head_dim: launch options of each kernel"""


class TritonVarlenAttention(torch.autograd.Function):
    """[Q, heads, head_dim], for a head_dim in LAUNCHES."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float) -> Tensor:
        out, logsumexp_HQ = varlen_forward(q, k, v, layout, scale)
        ctx.save_for_backward(q, k, v, out, logsumexp_HQ)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v, out, logsumexp_HQ), d_out = ctx.saved_tensors, gradients[0].contiguous()
        dq, delta_HQ = varlen_backward_q(q, k, v, out, d_out, logsumexp_HQ, ctx.layout, ctx.scale)
        dk, dv = varlen_backward_kv(q, k, v, d_out, logsumexp_HQ, delta_HQ, ctx.layout, ctx.scale)
        return dq, dk, dv, None, None


@on_tensor_device
def varlen_forward(q_QHD: Tensor, k_KGD: Tensor, v_KGD: Tensor, layout: SequenceLayout, scale: float) -> tuple[Tensor, Tensor]:
    """[Q, heads, head_dim], and each query's l · log₂ e, [heads, Q]."""
    from tacit.engines.local.fast.varlen_attention_kernels import varlen_forward_kernel  # Triton comes with CUDA only

    queries, heads, dim = q_QHD.shape
    launch = LAUNCHES[dim]["forward"]
    out_QHD = (
        q_QHD.new_empty(q_QHD.shape) if layout.keys_B is None else q_QHD.new_zeros(q_QHD.shape)
    )  # padding of a recorded prefill has no block
    logsumexp_HQ = q_QHD.new_empty(heads, queries, dtype=torch.float32)
    blocks = layout.get_blocks("queries", launch["BLOCK_Q"])
    if len(blocks):
        varlen_forward_kernel[(len(blocks) * heads,)](
            q_QHD, k_KGD, v_KGD, out_QHD, logsumexp_HQ, blocks, queries,
            *_strides(q_QHD, k_KGD, v_KGD), scale * math.log2(math.e), **_sizes(q_QHD, k_KGD), **launch,
        )  # fmt: skip
    return out_QHD, logsumexp_HQ


@on_tensor_device
def varlen_backward_q(
    q_QHD: Tensor,
    k_KGD: Tensor,
    v_KGD: Tensor,
    out_QHD: Tensor,
    d_out_QHD: Tensor,
    logsumexp_HQ: Tensor,
    layout: SequenceLayout,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The gradient of the queries, and δ [heads, Q]."""
    from tacit.engines.local.fast.varlen_attention_kernels import varlen_backward_q_kernel

    queries, heads, dim = q_QHD.shape
    launch = LAUNCHES[dim]["backward_q"]
    dq_QHD, delta_HQ = q_QHD.new_empty(q_QHD.shape), torch.empty_like(logsumexp_HQ)
    blocks = layout.get_blocks("queries", launch["BLOCK_Q"])
    if len(blocks):
        varlen_backward_q_kernel[(len(blocks) * heads,)](
            q_QHD, k_KGD, v_KGD, out_QHD, d_out_QHD, logsumexp_HQ, delta_HQ, dq_QHD, blocks, queries,
            *_strides(q_QHD, k_KGD, v_KGD), scale, scale * math.log2(math.e), **_sizes(q_QHD, k_KGD), **launch,
        )  # fmt: skip
    return dq_QHD, delta_HQ


@on_tensor_device
def varlen_backward_kv(
    q_QHD: Tensor,
    k_KGD: Tensor,
    v_KGD: Tensor,
    d_out_QHD: Tensor,
    logsumexp_HQ: Tensor,
    delta_HQ: Tensor,
    layout: SequenceLayout,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The gradients of keys and values; zero for keys that no query sees."""
    from tacit.engines.local.fast.varlen_attention_kernels import varlen_backward_kv_kernel

    queries, _, dim = q_QHD.shape
    launch = LAUNCHES[dim]["backward_kv"]
    dk_KGD, dv_KGD = k_KGD.new_empty(k_KGD.shape), v_KGD.new_empty(v_KGD.shape)
    blocks = layout.get_blocks("keys", launch["BLOCK_K"])
    if len(blocks):
        varlen_backward_kv_kernel[(len(blocks) * k_KGD.shape[1],)](
            q_QHD, k_KGD, v_KGD, d_out_QHD, logsumexp_HQ, delta_HQ, dk_KGD, dv_KGD, blocks, queries,
            *_strides(q_QHD, k_KGD, v_KGD), scale, scale * math.log2(math.e), **_sizes(q_QHD, k_KGD), **launch,
        )  # fmt: skip
    return dk_KGD, dv_KGD


def _strides(*tensors: Tensor) -> list[int]:
    """Token and head strides: each tensor may be a slice of a wider one."""
    return [stride for tensor in tensors for stride in tensor.stride()[:2]]


def _sizes(q_QHD: Tensor, k_KGD: Tensor) -> dict[str, int]:
    _, heads, dim = q_QHD.shape
    return {"HEADS": heads, "GROUP": heads // k_KGD.shape[1], "DIM": dim}


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
        if is_out_of_memory(error):  # says nothing about the kernel, and must not be cached
            raise
        return False
    return True


@capability_probe
def has_varlen_kernels(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    """Whether the Triton kernels are used: on a Hopper GPU, which LAUNCHES is tuned for. Elsewhere torch's may be faster."""
    if head_dim not in LAUNCHES or not has_flash_attention(device, dtype, head_dim):
        return False
    if nvidia_generation(device) != HOPPER:
        return False
    return is_kernel_usable("varlen attention", device, partial(_matches_torch, device, dtype, heads, key_heads, head_dim))


def attend_varlen(q_QHD: Tensor, k_KGD: Tensor, v_KGD: Tensor, layout: SequenceLayout, scale: float) -> Tensor:
    """[Q, heads, head_dim]; H / G query heads share a key head. Scoring, updates and prefill use the same kernel, so importance
    ratios compare the same numbers."""
    if has_varlen_kernels(q_QHD.device, q_QHD.dtype, q_QHD.shape[1], k_KGD.shape[1], q_QHD.shape[2]):
        return TritonVarlenAttention.apply(q_QHD, k_KGD, v_KGD, layout, scale)
    if has_flash_attention(q_QHD.device, q_QHD.dtype, q_QHD.shape[-1]):
        return _FlashVarlenAttention.apply(q_QHD, k_KGD, v_KGD, layout, scale)
    return _attend_row_by_row(q_QHD, k_KGD, v_KGD, layout, scale)


@torch.inference_mode(False)
@torch.enable_grad()
def _matches_torch(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    """Sequences of one token and of several blocks, one with more keys than queries and one without queries, strided heads,
    scores from flat to sharp. Enables gradients: the first call may come from inference mode."""
    generator = torch.Generator(device).manual_seed(0)
    queries_B, keys_B = np.array([1, 150, 0, 131]), np.array([1, 150, 4, 300])
    layout = SequenceLayout.of(queries_B, keys_B, device)

    def drawn(tokens: int, heads: int) -> Tensor:
        wide = torch.randn(tokens, heads + 1, head_dim, generator=generator, device=device)
        return (wide * torch.logspace(-1, 0.3, tokens, device=device)[:, None, None]).to(dtype)[:, 1:].requires_grad_()

    inputs = [drawn(int(queries_B.sum()), heads), *(drawn(int(keys_B.sum()), key_heads) for _ in "kv")]
    d_out = drawn(int(queries_B.sum()), heads).detach()
    exact = [x.detach().float().requires_grad_() for x in inputs]
    (q, k, v), scale = exact, head_dim**-0.5
    found = TritonVarlenAttention.apply(*inputs, layout, scale)
    all_found = [found, *torch.autograd.grad(found, inputs, d_out)]
    with sdpa_kernel(SDPBackend.MATH):  # other backends warn in deterministic mode
        expected = _attend_row_by_row(q, k, v, layout, scale)
        all_expected = [expected, *torch.autograd.grad(expected, exact, d_out.float())]
    # softmax weights, outputs and the terms of gradients are all rounded
    most = 4 * torch.finfo(dtype).eps + 1e-5
    return all(bool((x.float() - y).abs().max() <= most * y.abs().max()) for x, y in zip(all_found, all_expected, strict=True))


class _FlashVarlenAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float) -> Tensor:
        rows = (layout.cu_seqlens_q, layout.starts_k, layout.max_seqlen_q, layout.max_seqlen_k)
        found = torch.ops.aten._flash_attention_forward(q, k, v, *rows, 0.0, True, False, scale=scale)
        out, logsumexp, seed, offset, _ = found
        ctx.save_for_backward(q, k, v, out, logsumexp, seed, offset)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v, out, logsumexp, seed, offset), layout = ctx.saved_tensors, ctx.layout
        rows = (layout.cu_seqlens_q, layout.starts_k, layout.max_seqlen_q, layout.max_seqlen_k)
        with _strict_determinism():
            found = torch.ops.aten._flash_attention_backward(
                gradients[0].contiguous(), q, k, v, out, logsumexp, *rows, 0.0, True, seed, offset, scale=ctx.scale
            )
        return *found, None, None


@contextmanager
def _strict_determinism() -> Iterator[None]:
    """Torch's flash backward is only deterministic with `warn_only` off; with it on, it warns and is not."""
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if warns:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        if warns:
            torch.use_deterministic_algorithms(True, warn_only=True)


def _attend_row_by_row(q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float) -> Tensor:
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
