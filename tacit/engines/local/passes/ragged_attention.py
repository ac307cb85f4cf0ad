"""Causal attention over rows of different lengths that lie end to end: no padding, and no mask to build.

    query i of a row sees the row's keys 0 … (its keys − its queries) + i

so a row's queries are the last of its tokens, whose keys may begin earlier: with a prompt that other rows share, say. On a GPU
in half precision this is one launch of torch's flash kernel, or of our own (span_attention) on those that it was made for;
elsewhere, row by row, what that launch computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tacit.engines.local.memory import ran_out
from tacit.engines.local.passes.kernels import HOPPER, generation, holds
from tacit.engines.local.passes.span_attention import LAUNCHES, Attended
from tacit.engines.local.passes.spans import Spans


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


@cache
def has_own(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    """Whether our kernels are used on these: where torch's runs, on a GPU that LAUNCHES is for, and they are right; on others,
    torch's kernel may well be quicker."""
    if head_dim not in LAUNCHES or not has_flash(device, dtype, head_dim):
        return False
    if generation(device) != HOPPER:
        return False
    return holds("attention and its gradient", device, partial(_agrees, device, dtype, heads, key_heads, head_dim))


def attend(q_QHD: torch.Tensor, k_KGD: torch.Tensor, v_KGD: torch.Tensor, spans: Spans, scale: float) -> torch.Tensor:
    """[Q, heads, head_dim]; H / G query heads share a key head. With or without a gradient it is the same kernel: a ratio of
    what is scored to what is learned from is of the same numbers. So it is for a prefill, recorded or not."""
    if has_own(q_QHD.device, q_QHD.dtype, q_QHD.shape[1], k_KGD.shape[1], q_QHD.shape[2]):
        return Attended.apply(q_QHD, k_KGD, v_KGD, spans, scale)
    if has_flash(q_QHD.device, q_QHD.dtype, q_QHD.shape[-1]):
        return _Flash.apply(q_QHD, k_KGD, v_KGD, spans, scale)
    return _row_by_row(q_QHD, k_KGD, v_KGD, spans, scale)


@torch.inference_mode(False)
@torch.enable_grad()
def _agrees(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    """Rows of one token and of several blocks, one with more keys than queries and one without any, in heads that lie side by
    side with others in memory; scores from flat to sharp. It is asked first where nothing has a gradient."""
    generator = torch.Generator(device).manual_seed(0)
    queries_B, keys_B = np.array([1, 150, 0, 131]), np.array([1, 150, 4, 300])
    spans = Spans.of(queries_B, keys_B, device)

    def drawn(tokens: int, heads: int) -> torch.Tensor:
        wide = torch.randn(tokens, heads + 1, head_dim, generator=generator, device=device)
        return (wide * torch.logspace(-1, 0.3, tokens, device=device)[:, None, None]).to(dtype)[:, 1:].requires_grad_()

    asked = [drawn(int(queries_B.sum()), heads), *(drawn(int(keys_B.sum()), key_heads) for _ in "kv")]
    pull = drawn(int(queries_B.sum()), heads).detach()
    exact = [x.detach().float().requires_grad_() for x in asked]
    (q, k, v), scale = exact, head_dim**-0.5
    found = Attended.apply(*asked, spans, scale)
    all_found = [found, *torch.autograd.grad(found, asked, pull)]
    with sdpa_kernel(SDPBackend.MATH):  # others warn, and once only, that they have no fixed order, where one is asked for
        expected = _row_by_row(q, k, v, spans, scale)
        all_expected = [expected, *torch.autograd.grad(expected, exact, pull.float())]
    # weights and what is found are rounded, and so is what a gradient is a sum of
    most = 4 * torch.finfo(dtype).eps + 1e-5
    return all(bool((x.float() - y).abs().max() <= most * y.abs().max()) for x, y in zip(all_found, all_expected, strict=True))


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
