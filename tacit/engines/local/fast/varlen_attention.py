"""Rows of different lengths that lie end to end: where each begins, and how a kernel's programs share them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tacit.engines.local.fast.kernels import HOPPER, capability_probe, is_kernel_usable, nvidia_generation, on_tensor_device
from tacit.engines.local.memory import is_out_of_memory
from tacit.engines.local.packing import to_device


@dataclass(frozen=True, eq=False)
class SequenceLayout:
    """Where rows begin: row b's queries lie from `starts_q[b]` to `starts_q[b + 1]`, and so do its keys, unless `keys_B` says
    how many there are from `starts_k[b]` on: in a cache they lie apart."""

    cu_seqlens_q: torch.Tensor
    starts_k: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    lengths: tuple[np.ndarray, np.ndarray] | None = None
    """of each row's queries and keys, where the host knows them"""
    blocks: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)
    """of queries or of keys, by their size: those that have been asked for, or were made beforehand"""
    keys_B: torch.Tensor | None = None

    @staticmethod
    def of(queries_B: np.ndarray, keys_B: np.ndarray, device: torch.device) -> SequenceLayout:
        """Rows of so many queries and keys."""
        starts_q, starts_k = (to_device(_cumulative(lengths), device) for lengths in (queries_B, keys_B))
        return SequenceLayout(starts_q, starts_k, int(queries_B.max()), int(keys_B.max()), (queries_B, keys_B))

    @staticmethod
    def in_cache(
        queries_B: np.ndarray, keys_B: np.ndarray, starts_B: np.ndarray, block: int, device: torch.device
    ) -> SequenceLayout:
        """Rows of so many queries, whose keys begin at these slots of a cache; for a kernel that looks at a block of so many
        queries together (0: there is none)."""
        starts_q, starts_k, number_B = (
            to_device(x.astype(np.int32), device) for x in (_cumulative(queries_B), starts_B, keys_B)
        )
        table = {("queries", block): split_into_blocks(queries_B, keys_B, "queries", block, starts_B)} if block else {}
        blocks = {what: to_device(rows, device) for what, rows in table.items()}
        return SequenceLayout(starts_q, starts_k, int(queries_B.max()), int(keys_B.max()), blocks=blocks, keys_B=number_B)

    def query_blocks(self, size: int) -> torch.Tensor:
        """[blocks, 5] (see `shared`) of up to so many queries each, on the device."""
        return self._kept("queries", size)

    def key_blocks(self, size: int) -> torch.Tensor:
        """[blocks, 5] of up to so many keys each. Keys that no query sees are among them."""
        return self._kept("keys", size)

    def _kept(self, what: str, size: int) -> torch.Tensor:
        """Every layer of a pass asks for the same."""
        if (what, size) not in self.blocks:
            assert self.lengths is not None
            self.blocks[what, size] = to_device(split_into_blocks(*self.lengths, what, size), self.cu_seqlens_q.device)
        return self.blocks[what, size]


def _cumulative(lengths_B: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths_B)]).astype(np.int32)


def max_blocks(tokens: int, rows: int, size: int) -> int:
    """that any so many rows of so many tokens in all are cut into"""
    return tokens // size + rows


def split_into_blocks(
    queries_B: np.ndarray, keys_B: np.ndarray, what: str, size: int, starts_k: np.ndarray | None = None
) -> np.ndarray:
    """[blocks, 5]: a block's first token within its row, and of the row where its queries start, how many they are, where its
    keys start, and how many those are. There is no block without tokens, however the lengths differ, and those with the most to
    do come first: a device is done when its last program is."""
    lengths_B = queries_B if what == "queries" else keys_B
    counts_B = -(-lengths_B // size)
    rows_N = np.repeat(np.arange(len(lengths_B)), counts_B)
    first_N = (np.arange(len(rows_N)) - np.repeat(_cumulative(counts_B)[:-1], counts_B)) * size
    queries_N, keys_N = queries_B[rows_N], keys_B[rows_N]
    if what == "queries":  # the last of a block sees so many keys
        work_N = keys_N - queries_N + np.minimum(first_N + size, queries_N)
    else:  # so many queries see one of a block
        work_N = queries_N - np.maximum(first_N - (keys_N - queries_N), 0)
    starts_k = _cumulative(keys_B) if starts_k is None else starts_k
    table_N5 = np.stack([first_N, _cumulative(queries_B)[rows_N], queries_N, starts_k[rows_N], keys_N], 1)
    return table_N5[np.argsort(-work_N, kind="stable")].astype(np.int32)


# Causal attention over rows end to end with its gradient, by kernels of our own, for a Hopper GPU.
#
#     oᵢ = Σⱼ pᵢⱼ vⱼ,   pᵢⱼ = exp(sᵢⱼ − lᵢ),   sᵢⱼ = scale qᵢ·kⱼ,   lᵢ = log Σⱼ exp sᵢⱼ        over the keys j that query i sees
#     dvⱼ = Σᵢ pᵢⱼ doᵢ        dsᵢⱼ = pᵢⱼ (doᵢ·vⱼ − δᵢ),   δᵢ = oᵢ·doᵢ        dqᵢ = scale Σⱼ dsᵢⱼ kⱼ        dkⱼ = scale Σᵢ dsᵢⱼ
# qᵢ
#
# Torch's kernel was made for the generation before: it leaves most of a Hopper's matrix units idle. On the way back weights are
# found again from l, in powers of two. There each query's sum is one program's, and so is each key's, over all heads that share
# it: nothing is added up in memory, so the order of every sum is fixed.

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
"""by head_dim: queries and keys that are looked at together, by how many warps, and how far ahead they are asked for"""


class TritonVarlenAttention(torch.autograd.Function):
    """[Q, heads, head_dim], of heads with one of the sizes in LAUNCHES."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: SequenceLayout, scale: float
    ) -> torch.Tensor:
        out, logsumexp_HQ = varlen_forward(q, k, v, spans, scale)
        ctx.save_for_backward(q, k, v, out, logsumexp_HQ)
        ctx.spans, ctx.scale = spans, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (q, k, v, out, logsumexp_HQ), gradient = ctx.saved_tensors, gradients[0].contiguous()
        rows = (ctx.spans, ctx.scale)
        for_q, products_HQ = varlen_backward_q(q, k, v, out, gradient, logsumexp_HQ, *rows)
        for_k, for_v = varlen_backward_kv(q, k, v, gradient, logsumexp_HQ, products_HQ, *rows)
        return for_q, for_k, for_v, None, None


@on_tensor_device
def varlen_forward(
    q_QHD: torch.Tensor, k_KGD: torch.Tensor, v_KGD: torch.Tensor, spans: SequenceLayout, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """[Q, heads, head_dim], and each query's l · log₂ e, [heads, Q]."""
    from tacit.engines.local.fast.varlen_attention_kernels import (
        varlen_forward_kernel,  # triton is only there where there is a GPU
    )

    queries, heads, dim = q_QHD.shape
    launch = LAUNCHES[dim]["forward"]
    out_QHD = q_QHD.new_empty(q_QHD.shape) if spans.keys_B is None else q_QHD.new_zeros(q_QHD.shape)  # not all may ask
    logsumexp_HQ = q_QHD.new_empty(heads, queries, dtype=torch.float32)
    blocks = spans.query_blocks(launch["BLOCK_Q"])
    if len(blocks):
        varlen_forward_kernel[(len(blocks) * heads,)](
            q_QHD, k_KGD, v_KGD, out_QHD, logsumexp_HQ, blocks, queries,
            *_strides(q_QHD, k_KGD, v_KGD), scale * math.log2(math.e), **_sizes(q_QHD, k_KGD), **launch,
        )  # fmt: skip
    return out_QHD, logsumexp_HQ


@on_tensor_device
def varlen_backward_q(
    q_QHD: torch.Tensor,
    k_KGD: torch.Tensor,
    v_KGD: torch.Tensor,
    out_QHD: torch.Tensor,
    gradient_QHD: torch.Tensor,
    logsumexp_HQ: torch.Tensor,
    spans: SequenceLayout,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of the queries, and each one's δ, [heads, Q]."""
    from tacit.engines.local.fast.varlen_attention_kernels import varlen_backward_q_kernel

    queries, heads, dim = q_QHD.shape
    launch = LAUNCHES[dim]["backward_q"]
    for_q_QHD, products_HQ = q_QHD.new_empty(q_QHD.shape), torch.empty_like(logsumexp_HQ)
    blocks = spans.query_blocks(launch["BLOCK_Q"])
    if len(blocks):
        varlen_backward_q_kernel[(len(blocks) * heads,)](
            q_QHD, k_KGD, v_KGD, out_QHD, gradient_QHD, logsumexp_HQ, products_HQ, for_q_QHD, blocks, queries,
            *_strides(q_QHD, k_KGD, v_KGD), scale, scale * math.log2(math.e), **_sizes(q_QHD, k_KGD), **launch,
        )  # fmt: skip
    return for_q_QHD, products_HQ


@on_tensor_device
def varlen_backward_kv(
    q_QHD: torch.Tensor,
    k_KGD: torch.Tensor,
    v_KGD: torch.Tensor,
    gradient_QHD: torch.Tensor,
    logsumexp_HQ: torch.Tensor,
    products_HQ: torch.Tensor,
    spans: SequenceLayout,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of the keys and of the values; what no query sees has none."""
    from tacit.engines.local.fast.varlen_attention_kernels import varlen_backward_kv_kernel

    queries, _, dim = q_QHD.shape
    launch = LAUNCHES[dim]["backward_kv"]
    for_k_KGD, for_v_KGD = k_KGD.new_empty(k_KGD.shape), v_KGD.new_empty(v_KGD.shape)
    blocks = spans.key_blocks(launch["BLOCK_K"])
    if len(blocks):
        varlen_backward_kv_kernel[(len(blocks) * k_KGD.shape[1],)](
            q_QHD, k_KGD, v_KGD, gradient_QHD, logsumexp_HQ, products_HQ, for_k_KGD, for_v_KGD, blocks, queries,
            *_strides(q_QHD, k_KGD, v_KGD), scale, scale * math.log2(math.e), **_sizes(q_QHD, k_KGD), **launch,
        )  # fmt: skip
    return for_k_KGD, for_v_KGD


def _strides(*tensors: torch.Tensor) -> list[int]:
    """From token to token and from head to head: each may be a part of something wider."""
    return [stride for tensor in tensors for stride in tensor.stride()[:2]]


def _sizes(q_QHD: torch.Tensor, k_KGD: torch.Tensor) -> dict[str, int]:
    _, heads, dim = q_QHD.shape
    return {"HEADS": heads, "GROUP": heads // k_KGD.shape[1], "DIM": dim}


# Causal attention over rows of different lengths that lie end to end: no padding, and no mask to build.
#
#     query i of a row sees the row's keys 0 … (its keys − its queries) + i
#
# so a row's queries are the last of its tokens, whose keys may begin earlier: with a prompt that other rows share, say. On a
# GPU
# in half precision this is one launch of torch's flash kernel, or of our own (span_attention) on those that it was made for;
# elsewhere, row by row, what that launch computes.


@capability_probe
def has_flash_attention(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether torch's flash kernel runs on these: asked by running it once."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    try:
        probe = torch.zeros(4, 2, head_dim, device=device, dtype=dtype)
        lengths = np.array([1, 3])
        _FlashVarlenAttention.apply(probe, probe[:, :1], probe[:, :1], SequenceLayout.of(lengths, lengths, device), 1.0)
    except (RuntimeError, AttributeError, TypeError) as error:
        if is_out_of_memory(error):  # which says nothing of the kernel, and is remembered for good
            raise
        return False
    return True


@capability_probe
def has_varlen_kernels(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    """Whether our kernels are used on these: where torch's runs, on a GPU that LAUNCHES is for, and they are right; on others,
    torch's kernel may well be quicker."""
    if head_dim not in LAUNCHES or not has_flash_attention(device, dtype, head_dim):
        return False
    if nvidia_generation(device) != HOPPER:
        return False
    return is_kernel_usable(
        "attention and its gradient", device, partial(_matches_torch, device, dtype, heads, key_heads, head_dim)
    )


def attend_varlen(
    q_QHD: torch.Tensor, k_KGD: torch.Tensor, v_KGD: torch.Tensor, spans: SequenceLayout, scale: float
) -> torch.Tensor:
    """[Q, heads, head_dim]; H / G query heads share a key head. With or without a gradient it is the same kernel: a ratio of
    what is scored to what is learned from is of the same numbers. So it is for a prefill, recorded or not."""
    if has_varlen_kernels(q_QHD.device, q_QHD.dtype, q_QHD.shape[1], k_KGD.shape[1], q_QHD.shape[2]):
        return TritonVarlenAttention.apply(q_QHD, k_KGD, v_KGD, spans, scale)
    if has_flash_attention(q_QHD.device, q_QHD.dtype, q_QHD.shape[-1]):
        return _FlashVarlenAttention.apply(q_QHD, k_KGD, v_KGD, spans, scale)
    return _attend_row_by_row(q_QHD, k_KGD, v_KGD, spans, scale)


@torch.inference_mode(False)
@torch.enable_grad()
def _matches_torch(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    """Rows of one token and of several blocks, one with more keys than queries and one without any, in heads that lie side by
    side with others in memory; scores from flat to sharp. It is asked first where nothing has a gradient."""
    generator = torch.Generator(device).manual_seed(0)
    queries_B, keys_B = np.array([1, 150, 0, 131]), np.array([1, 150, 4, 300])
    spans = SequenceLayout.of(queries_B, keys_B, device)

    def drawn(tokens: int, heads: int) -> torch.Tensor:
        wide = torch.randn(tokens, heads + 1, head_dim, generator=generator, device=device)
        return (wide * torch.logspace(-1, 0.3, tokens, device=device)[:, None, None]).to(dtype)[:, 1:].requires_grad_()

    asked = [drawn(int(queries_B.sum()), heads), *(drawn(int(keys_B.sum()), key_heads) for _ in "kv")]
    pull = drawn(int(queries_B.sum()), heads).detach()
    exact = [x.detach().float().requires_grad_() for x in asked]
    (q, k, v), scale = exact, head_dim**-0.5
    found = TritonVarlenAttention.apply(*asked, spans, scale)
    all_found = [found, *torch.autograd.grad(found, asked, pull)]
    with sdpa_kernel(SDPBackend.MATH):  # others warn, and once only, that they have no fixed order, where one is asked for
        expected = _attend_row_by_row(q, k, v, spans, scale)
        all_expected = [expected, *torch.autograd.grad(expected, exact, pull.float())]
    # weights and what is found are rounded, and so is what a gradient is a sum of
    most = 4 * torch.finfo(dtype).eps + 1e-5
    return all(bool((x.float() - y).abs().max() <= most * y.abs().max()) for x, y in zip(all_found, all_expected, strict=True))


class _FlashVarlenAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: SequenceLayout, scale: float
    ) -> torch.Tensor:
        out, logsumexp, seed, offset, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, spans.cu_seqlens_q, spans.starts_k, spans.max_seqlen_q, spans.max_seqlen_k, 0.0, True, False, scale=scale
        )
        ctx.save_for_backward(q, k, v, out, logsumexp, seed, offset)
        ctx.spans, ctx.scale = spans, scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (q, k, v, out, logsumexp, seed, offset), spans = ctx.saved_tensors, ctx.spans
        rows = (spans.cu_seqlens_q, spans.starts_k, spans.max_seqlen_q, spans.max_seqlen_k)
        with _strict_determinism():
            found = torch.ops.aten._flash_attention_backward(
                gradients[0].contiguous(), q, k, v, out, logsumexp, *rows, 0.0, True, seed, offset, scale=ctx.scale
            )
        return *found, None, None


@contextmanager
def _strict_determinism() -> Iterator[None]:
    """Where sums are to have a fixed order, this kernel has one only while nothing else is allowed: as long as a warning would
    do for what cannot, it warns and goes on in any order."""
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if warns:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        if warns:
            torch.use_deterministic_algorithms(True, warn_only=True)


def _attend_row_by_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: SequenceLayout, scale: float) -> torch.Tensor:
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    answers = []
    starts_q, starts_k = spans.cu_seqlens_q.tolist(), spans.starts_k.tolist()
    ends_k = starts_k[1:] if spans.keys_B is None else (spans.starts_k + spans.keys_B).tolist()
    for a, b, c, d in zip(starts_q, starts_q[1:], starts_k, ends_k, strict=False):
        if a == b:
            continue
        seen = torch.ones(b - a, d - c, dtype=torch.bool, device=q.device).tril_(d - c - (b - a))
        row = scaled_dot_product_attention(
            q[a:b].transpose(0, 1), k[c:d].transpose(0, 1), v[c:d].transpose(0, 1), attn_mask=seen, scale=scale
        )
        answers.append(row.transpose(0, 1))
        if b - a > d - c:
            answers[-1][: b - a - (d - c)] = 0  # a query that sees nothing
    return torch.cat(answers)
