"""Causal attention over rows end to end with its gradient, by kernels of our own, for a Hopper GPU.

    oᵢ = Σⱼ pᵢⱼ vⱼ,   pᵢⱼ = exp(sᵢⱼ − lᵢ),   sᵢⱼ = scale qᵢ·kⱼ,   lᵢ = log Σⱼ exp sᵢⱼ        over the keys j that query i sees
    dvⱼ = Σᵢ pᵢⱼ doᵢ        dsᵢⱼ = pᵢⱼ (doᵢ·vⱼ − δᵢ),   δᵢ = oᵢ·doᵢ        dqᵢ = scale Σⱼ dsᵢⱼ kⱼ        dkⱼ = scale Σᵢ dsᵢⱼ qᵢ

Torch's kernel was made for the generation before: it leaves most of a Hopper's matrix units idle. On the way back weights are
found again from l, in powers of two. There each query's sum is one program's, and so is each key's, over all heads that share
it: nothing is added up in memory, so the order of every sum is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from tacit.engines.local.passes.kernels import on_its_device
from tacit.engines.local.passes.spans import Spans

Launch = Mapping[str, int]

LAUNCHES: dict[int, dict[str, Launch]] = {
    64: {
        "attend": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
        "pull_queries": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
        "pull_keys": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
    },
    128: {
        "attend": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
        "pull_queries": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2},
        "pull_keys": {"BLOCK_Q": 32, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
    },
}
"""by head_dim: queries and keys that are looked at together, by how many warps, and how far ahead they are asked for"""


class Attended(torch.autograd.Function):
    """[Q, heads, head_dim], of heads with one of the sizes in LAUNCHES."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: Spans, scale: float) -> torch.Tensor:
        out, logsumexp_HQ = attended(q, k, v, spans, scale)
        ctx.save_for_backward(q, k, v, out, logsumexp_HQ)
        ctx.spans, ctx.scale = spans, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (q, k, v, out, logsumexp_HQ), gradient = ctx.saved_tensors, gradients[0].contiguous()
        rows = (ctx.spans, ctx.scale)
        for_q, products_HQ = pulled_queries(q, k, v, out, gradient, logsumexp_HQ, *rows)
        for_k, for_v = pulled_keys(q, k, v, gradient, logsumexp_HQ, products_HQ, *rows)
        return for_q, for_k, for_v, None, None


@on_its_device
def attended(
    q_QHD: torch.Tensor, k_KGD: torch.Tensor, v_KGD: torch.Tensor, spans: Spans, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """[Q, heads, head_dim], and each query's l · log₂ e, [heads, Q]."""
    from tacit.engines.local.passes.span_attention_kernel import attend_block  # triton is only there where there is a GPU

    queries, heads, dim = q_QHD.shape
    launch = LAUNCHES[dim]["attend"]
    out_QHD = q_QHD.new_empty(q_QHD.shape) if spans.keys_B is None else q_QHD.new_zeros(q_QHD.shape)  # not all may ask
    logsumexp_HQ = q_QHD.new_empty(heads, queries, dtype=torch.float32)
    blocks = spans.query_blocks(launch["BLOCK_Q"])
    if len(blocks):
        attend_block[(len(blocks) * heads,)](
            q_QHD, k_KGD, v_KGD, out_QHD, logsumexp_HQ, blocks, queries,
            *_strides(q_QHD, k_KGD, v_KGD), scale * math.log2(math.e), **_sizes(q_QHD, k_KGD), **launch,
        )  # fmt: skip
    return out_QHD, logsumexp_HQ


@on_its_device
def pulled_queries(
    q_QHD: torch.Tensor,
    k_KGD: torch.Tensor,
    v_KGD: torch.Tensor,
    out_QHD: torch.Tensor,
    gradient_QHD: torch.Tensor,
    logsumexp_HQ: torch.Tensor,
    spans: Spans,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of the queries, and each one's δ, [heads, Q]."""
    from tacit.engines.local.passes.span_attention_kernel import pull_queries

    queries, heads, dim = q_QHD.shape
    launch = LAUNCHES[dim]["pull_queries"]
    for_q_QHD, products_HQ = q_QHD.new_empty(q_QHD.shape), torch.empty_like(logsumexp_HQ)
    blocks = spans.query_blocks(launch["BLOCK_Q"])
    if len(blocks):
        pull_queries[(len(blocks) * heads,)](
            q_QHD, k_KGD, v_KGD, out_QHD, gradient_QHD, logsumexp_HQ, products_HQ, for_q_QHD, blocks, queries,
            *_strides(q_QHD, k_KGD, v_KGD), scale, scale * math.log2(math.e), **_sizes(q_QHD, k_KGD), **launch,
        )  # fmt: skip
    return for_q_QHD, products_HQ


@on_its_device
def pulled_keys(
    q_QHD: torch.Tensor,
    k_KGD: torch.Tensor,
    v_KGD: torch.Tensor,
    gradient_QHD: torch.Tensor,
    logsumexp_HQ: torch.Tensor,
    products_HQ: torch.Tensor,
    spans: Spans,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of the keys and of the values; what no query sees has none."""
    from tacit.engines.local.passes.span_attention_kernel import pull_keys

    queries, _, dim = q_QHD.shape
    launch = LAUNCHES[dim]["pull_keys"]
    for_k_KGD, for_v_KGD = k_KGD.new_empty(k_KGD.shape), v_KGD.new_empty(v_KGD.shape)
    blocks = spans.key_blocks(launch["BLOCK_K"])
    if len(blocks):
        pull_keys[(len(blocks) * k_KGD.shape[1],)](
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
