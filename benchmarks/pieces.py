"""Parts of a layer with our kernels and with torch.compile, on a Hopper GPU, in microseconds.

    python benchmarks/pieces.py                    # shapes of SmolLM2-135M and Qwen2.5-1.5B
    python benchmarks/pieces.py --repeats 21 --json

Prefill (256 prompts of 200 tokens): RoPE with the KV-cache write, and RMSNorm; thirty calls in one CUDA graph, so that launch
latency does not count. Update: RoPE forward and backward, launched one by one as in training; short kernels include launch
latency.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from gpu_timing import begin, median_us

from tacit.engines.local.fast.layers import (
    COMPILED_OPS,
    RopeQKV,
    has_rms_norm_kernel,
    has_rope_cache_kernel,
    has_rope_qkv_kernel,
    rms_norm_forward,
    rope_into_cache,
)

GPU, PROMPTS, LENGTH, CALLS = torch.device("cuda"), 256, 200, 30


@dataclass(frozen=True)
class Shape:
    width: int
    heads: int
    key_heads: int
    head_dim: int
    tokens: int
    """per pass of an update"""

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.heads, self.key_heads, self.key_heads


SHAPES = {"135M": Shape(576, 9, 3, 64, 65536), "1.5B": Shape(1536, 12, 2, 128, 32768)}


def random_tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=GPU, dtype=torch.bfloat16)


def recorded_us(call: Callable[[], Any], repeats: int) -> float:
    """Median microseconds per call, for CALLS calls in one CUDA graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        call()
        call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    return median_us(graph.replay, repeats) / CALLS


@torch.inference_mode()
def of_a_prefill(shape: Shape, repeats: int) -> dict[str, dict[str, float]]:
    dim, tokens = shape.head_dim, PROMPTS * LENGTH
    qkv = random_tensor(tokens, sum(shape.sizes) * dim)
    by_head = qkv.view(tokens, -1, dim)
    _, k, v = by_head.split(shape.sizes, 1)
    positions = torch.arange(tokens, device=GPU) % LENGTH
    slots = torch.arange(tokens, device=GPU) // LENGTH * 256 + positions
    rotations = torch.randn(256, dim // 2, 2, device=GPU)
    turns = rotations[positions, None]
    keys, values = (random_tensor(PROMPTS * 256, shape.key_heads, dim) for _ in "kv")
    h, weight = random_tensor(tokens, shape.width), random_tensor(shape.width)

    def rotated_and_copied() -> None:
        COMPILED_OPS.apply_rope_interleaved(by_head[:, : shape.heads + shape.key_heads], turns)
        keys.index_copy_(0, slots, k)
        values.index_copy_(0, slots, v)

    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "rotation and cache": (
            rotated_and_copied,
            lambda: rope_into_cache(qkv, shape.heads, positions, rotations, slots, keys, values),
        ),
        "norm": (lambda: COMPILED_OPS.rms_norm(h, weight, 1e-5), lambda: rms_norm_forward(h, weight, 1e-5)),
    }
    return {
        what: {"torch": recorded_us(theirs, repeats), "ours": recorded_us(ours, repeats)}
        for what, (theirs, ours) in calls.items()
    }


def of_an_update(shape: Shape, repeats: int) -> dict[str, dict[str, float]]:
    qkv = random_tensor(shape.tokens, sum(shape.sizes) * shape.head_dim).requires_grad_()
    angles = torch.randn(shape.tokens, 1, shape.head_dim // 2, device=GPU)
    cos, sin = angles.cos(), angles.sin()
    grads = [random_tensor(shape.tokens, heads, shape.head_dim) for heads in shape.sizes]

    def compiled() -> tuple[torch.Tensor, ...]:
        q, k, v = qkv.unflatten(1, (-1, shape.head_dim)).split(shape.sizes, 1)
        return COMPILED_OPS.apply_rope(q, cos, sin), COMPILED_OPS.apply_rope(k, cos, sin), v

    found: dict[str, dict[str, float]] = {"rotation": {}, "rotation, back": {}}
    for name, run in (("torch", compiled), ("ours", lambda: RopeQKV.apply(qkv, cos, sin, shape.sizes))):
        answer = run()
        found["rotation"][name] = median_us(run, repeats)
        found["rotation, back"][name] = median_us(
            lambda answer=answer: torch.autograd.grad(answer, qkv, grads, retain_graph=True), repeats
        )
    return found


def check(shape: Shape) -> None:
    key = GPU, torch.bfloat16, shape.heads, shape.key_heads, shape.head_dim
    available = has_rope_cache_kernel(*key), has_rope_qkv_kernel(*key)
    if not all((*available, has_rms_norm_kernel(GPU, torch.bfloat16, shape.width))):
        raise SystemExit("some of our kernels are not available on this GPU; see the warnings above, if any.")


def main() -> None:
    args, result = begin("pieces", __doc__)
    for size, shape in SHAPES.items():
        check(shape)
        torch.manual_seed(0)
        result[size] = {"prefill": of_a_prefill(shape, args.repeats), "update": of_an_update(shape, args.repeats)}
        for where, tokens in (("prefill", PROMPTS * LENGTH), ("update", shape.tokens)):
            for what, found in result[size][where].items():
                print(f"{size}, {where} of {tokens:,} tokens: {what:18} {found['torch']:7.1f} → {found['ours']:7.1f} µs")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
