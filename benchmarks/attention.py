"""Attention of an update, with its gradient: our kernels beside torch's flash kernel, and both against float32.

    python benchmarks/attention.py                 # in the shapes of SmolLM2-135M and of Qwen2.5-1.5B, on a Hopper GPU
    python benchmarks/attention.py --repeats 21 --json

Rows lie end to end, as many as a pass of an update has. A product is 2 · heads · head_dim · (pairs of a query and a key that it
sees) operations; torch's way there has two and its way back five, and TFLOP/s are of so many for both, though ours has seven.
Between two measurements the cache is filled with something else, as it is by a layer's other work.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpu_timing import begin, median_us

from tacit.engines.local.fast import varlen_attention as ways
from tacit.engines.local.fast.varlen_attention import SequenceLayout, TritonVarlenAttention

SMALL = np.array([1, 300, 0, 77, 129, 512]), np.array([1, 300, 9, 500, 700, 512])
"""queries and keys of the rows that are held against float32"""
ALL = ("out", "queries", "keys", "values")


@dataclass(frozen=True, eq=False)
class Shape:
    heads: int
    key_heads: int
    head_dim: int
    lengths: np.ndarray
    """of rows, in tokens"""


def shapes() -> dict[str, Shape]:
    draw = np.random.default_rng(0)
    return {
        "1.5B": Shape(12, 2, 128, 523 + draw.integers(88, 263, 47)),
        "135M": Shape(9, 3, 64, draw.integers(490, 501, 132)),
    }


def drawn(shape: Shape, queries: int, keys: int) -> list[torch.Tensor]:
    """q, k, v and a gradient."""
    sizes = (queries, shape.heads), (keys, shape.key_heads), (keys, shape.key_heads), (queries, shape.heads)
    return [torch.randn(n, heads, shape.head_dim, device="cuda", dtype=torch.bfloat16) for n, heads in sizes]


def timed(call: Callable[[], Any], repeats: int) -> float:
    """Median microseconds."""
    other = torch.empty(64 << 20, dtype=torch.int8, device="cuda")
    return median_us(call, repeats, between=other.zero_)


def speed(way: Callable[..., torch.Tensor], shape: Shape, repeats: int) -> dict[str, float]:
    tokens = int(shape.lengths.sum())
    *asked, pull = drawn(shape, tokens, tokens)
    for tensor in asked:
        tensor.requires_grad_()
    spans, scale = SequenceLayout.of(shape.lengths, shape.lengths, torch.device("cuda")), shape.head_dim**-0.5
    out = way(*asked, spans, scale)
    product = 2.0 * shape.heads * shape.head_dim * float((shape.lengths * (shape.lengths + 1.0) / 2).sum())
    with torch.no_grad():
        there = timed(lambda: way(*asked, spans, scale), repeats)
    back = timed(lambda: torch.autograd.grad(out, asked, pull, retain_graph=True), repeats)
    return {
        "forward_us": there,
        "backward_us": back,
        "forward_tflops": 2 * product / there / 1e6,
        "backward_tflops": 5 * product / back / 1e6,
    }


def errors(way: Callable[..., torch.Tensor], shape: Shape) -> dict[str, float]:
    """‖difference‖ / ‖float32's‖ of the answer and of each gradient."""
    queries_B, keys_B = SMALL
    *asked, pull = drawn(shape, int(queries_B.sum()), int(keys_B.sum()))
    spans, scale = SequenceLayout.of(queries_B, keys_B, torch.device("cuda")), shape.head_dim**-0.5

    def found(way: Callable[..., torch.Tensor], asked: list[torch.Tensor], pull: torch.Tensor) -> list[torch.Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in asked]
        out = way(*leaves, spans, scale)
        return [out.detach(), *torch.autograd.grad(out, leaves, pull)]

    exact = found(ways._attend_row_by_row, [tensor.float() for tensor in asked], pull.float())
    pairs = zip(found(way, asked, pull), exact, strict=True)
    return {name: float((x.float() - y).norm() / y.norm()) for name, (x, y) in zip(ALL, pairs, strict=True)}


def main() -> None:
    args, result = begin("attention", __doc__)
    for size, shape in shapes().items():
        if not ways.has_varlen_kernels(torch.device("cuda"), torch.bfloat16, shape.heads, shape.key_heads, shape.head_dim):
            raise SystemExit(f"our kernels for heads of {shape.head_dim} are not used on this GPU: see the warning, if any.")
        torch.manual_seed(0)
        print(f"{size}: {len(shape.lengths)} rows, {shape.lengths.sum():,} tokens, {shape.heads} heads of {shape.head_dim}")
        result[size] = {}
        for name, way in (("torch", ways._FlashVarlenAttention.apply), ("ours", TritonVarlenAttention.apply)):
            found = result[size][name] = {**speed(way, shape, args.repeats), "errors": errors(way, shape)}
            print(
                "  {name:6} forward {forward_us:7.0f} µs, {forward_tflops:4.0f} TFLOP/s   backward {backward_us:7.0f} µs, "
                "{backward_tflops:4.0f} TFLOP/s   against float32 ".format(name=name, **found)
                + ", ".join(f"{what} {error:.1e}" for what, error in found["errors"].items())
            )
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
