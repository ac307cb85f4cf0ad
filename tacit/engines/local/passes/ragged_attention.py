"""Causal attention over rows of different lengths that lie end to end: no padding, and no mask to build.

    query i of a row sees the row's keys 0 … (its keys − its queries) + i

so a row's queries are the last of its tokens, whose keys may begin earlier: with a prompt that other rows share, say. On a GPU
in half precision this is one launch of torch's flash kernel; elsewhere, row by row, what that launch computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from tacit.engines.local.memory import ran_out
from tacit.engines.local.passes.handing import handed


@dataclass(frozen=True, eq=False)
class Spans:
    """Where rows begin: row b's queries lie from `starts_q[b]` to `starts_q[b + 1]`, its keys likewise."""

    starts_q: torch.Tensor
    starts_k: torch.Tensor
    longest_q: int
    longest_k: int

    @staticmethod
    def of(queries_B: np.ndarray, keys_B: np.ndarray, device: torch.device) -> Spans:
        """Rows of so many queries and keys."""
        starts_q, starts_k = (
            handed(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), device) for lengths in (queries_B, keys_B)
        )
        return Spans(starts_q, starts_k, int(queries_B.max()), int(keys_B.max()))


@cache
def has_flash(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether torch's flash kernel runs on these: asked by running it once."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    try:
        probe = torch.zeros(4, 2, head_dim, device=device, dtype=dtype)
        lengths = np.array([1, 3])
        _Flash.apply(probe, probe[:, :1], probe[:, :1], Spans.of(lengths, lengths, device), 1.0)
    except (RuntimeError, AttributeError, TypeError) as error:
        if ran_out(error):  # which says nothing of the kernel, and is remembered for good
            raise
        return False
    return True


def attend(q_QHD: torch.Tensor, k_KGD: torch.Tensor, v_KGD: torch.Tensor, spans: Spans, scale: float) -> torch.Tensor:
    """[Q, heads, head_dim]; H / G query heads share a key head."""
    if has_flash(q_QHD.device, q_QHD.dtype, q_QHD.shape[-1]):
        return _Flash.apply(q_QHD, k_KGD, v_KGD, spans, scale)
    return _row_by_row(q_QHD, k_KGD, v_KGD, spans, scale)


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: Spans, scale: float) -> torch.Tensor:
        out, logsumexp, seed, offset, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, spans.starts_q, spans.starts_k, spans.longest_q, spans.longest_k, 0.0, True, False, scale=scale
        )
        ctx.save_for_backward(q, k, v, out, logsumexp, seed, offset)
        ctx.spans, ctx.scale = spans, scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (q, k, v, out, logsumexp, seed, offset), spans = ctx.saved_tensors, ctx.spans
        rows = (spans.starts_q, spans.starts_k, spans.longest_q, spans.longest_k)
        with _in_order():
            found = torch.ops.aten._flash_attention_backward(
                gradients[0].contiguous(), q, k, v, out, logsumexp, *rows, 0.0, True, seed, offset, scale=ctx.scale
            )
        return *found, None, None


@contextmanager
def _in_order() -> Iterator[None]:
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


def _row_by_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: Spans, scale: float) -> torch.Tensor:
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    answers = []
    starts_q, starts_k = spans.starts_q.tolist(), spans.starts_k.tolist()
    for a, b, c, d in zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False):
        if a == b:
            continue
        seen = torch.ones(b - a, d - c, dtype=torch.bool, device=q.device).tril_(d - c - (b - a))
        row = scaled_dot_product_attention(
            q[a:b].transpose(0, 1), k[c:d].transpose(0, 1), v[c:d].transpose(0, 1), attn_mask=seen, scale=scale
        )
        answers.append(row.transpose(0, 1))
    return torch.cat(answers)
