"""Rotations on a GPU, once through memory.

    (a, b) ← (a cos − b sin, b cos + a sin)        for every pair of a query or key

A prefill rotates them where they lie, and puts keys and values into the cache. An update has queries, keys and values of its
own, and of their gradients, rotated back, that of their one product. As torch and its compiler have it, a rotation takes two to
seven times as long as reading and writing.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from tacit.engines.local.passes.kernels import holds, on_its_device
from tacit.engines.local.passes.packing import power_from

NUMBERS, WARPS = 4096, 4
"""of a program: of as many tokens as have so many, all heads"""


@on_its_device
def rotate_and_put(
    qkv_NF: torch.Tensor,
    heads: int,
    positions_N: torch.Tensor,
    rotations: torch.Tensor,
    slots_N: torch.Tensor,
    keys_SGD: torch.Tensor,
    values_SGD: torch.Tensor,
) -> None:
    """`qkv_NF`: so many heads of queries, then the keys' and the values'; tokens may lie apart. `rotations`: of each position
    [head_dim / 2, 2], cos and sin in float32."""
    from tacit.engines.local.passes.rotating_kernel import rotate_tokens  # triton is only there where there is a GPU

    key_heads, dim = keys_SGD.shape[1:]
    padded = power_from(heads + 2 * key_heads)
    tokens = max(1, NUMBERS // (padded * dim))
    if len(qkv_NF):
        rotate_tokens[(-(-len(qkv_NF) // tokens),)](
            qkv_NF, positions_N, rotations, slots_N, keys_SGD, values_SGD, len(qkv_NF), qkv_NF.stride(0),
            HEADS=heads, KEY_HEADS=key_heads, PADDED=padded, DIM=dim, TOKENS=tokens, num_warps=WARPS,
        )  # fmt: skip


class Rotated(torch.autograd.Function):
    """Queries, keys and values [N, heads, head_dim] of their product [N, features], the first two rotated: a pair is a number
    of a head's first half and one of its second. `cos` and `sin` are [N, 1, head_dim / 2] in float32."""

    @staticmethod
    def forward(
        ctx: Any, qkv_NF: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, sizes: tuple[int, int, int]
    ) -> tuple[torch.Tensor, ...]:
        """`sizes`: heads of each."""
        ctx.save_for_backward(cos, sin)
        dim = 2 * cos.shape[-1]
        q, k, v = qkv_NF.unflatten(1, (-1, dim)).split(sizes, 1)
        rotated_NF = turned(q, k, v, cos, sin, back=False)
        return rotated_NF.unflatten(1, (-1, dim)).split(sizes, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (cos, sin), (q, k, v) = ctx.saved_tensors, (gradient.contiguous() for gradient in gradients)
        return turned(q, k, v, cos, sin, back=True), None, None, None


@on_its_device
def turned(
    q_NHD: torch.Tensor, k_NGD: torch.Tensor, v_NGD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, back: bool
) -> torch.Tensor:
    """[N, features] side by side, queries and keys rotated, or rotated back. A token's heads lie together."""
    from tacit.engines.local.passes.rotating_kernel import turn_tokens

    (tokens, heads, dim), key_heads = q_NHD.shape, k_NGD.shape[1]
    found_NF = q_NHD.new_empty(tokens, (heads + 2 * key_heads) * dim)
    padded = power_from(heads)
    together = max(1, NUMBERS // (padded * dim))
    if tokens:
        turn_tokens[(-(-tokens // together),)](
            q_NHD, k_NGD, v_NGD, cos, sin, found_NF, tokens, q_NHD.stride(0), k_NGD.stride(0), v_NGD.stride(0),
            HEADS=heads, KEY_HEADS=key_heads, PADDED=padded, PADDED_KEYS=power_from(key_heads), HALF=dim // 2,
            TOKENS=together, BACK=back, num_warps=WARPS,
        )  # fmt: skip
    return found_NF


@cache
def has_turning_kernel(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    fits = head_dim in (16, 32, 64, 128, 256) and dtype in (torch.bfloat16, torch.float16)
    return fits and holds("rotations of an update", device, partial(_turns, device, dtype, heads, key_heads, head_dim))


def _turns(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    """Of a product, and of three gradients each by itself."""
    generator, tokens, sizes = torch.Generator(device).manual_seed(0), 37, (heads, key_heads, key_heads)
    given = torch.randn(tokens, sum(sizes), head_dim, generator=generator, device=device).to(dtype)
    angles = torch.randn(tokens, 1, head_dim // 2, generator=generator, device=device)
    cos, sin = angles.cos(), angles.sin()
    for back, (q, k, v) in ((False, given.split(sizes, 1)), (True, [x.contiguous() for x in given.split(sizes, 1)])):
        a, b = torch.cat([q, k], 1).float().chunk(2, -1)
        turn = -sin if back else sin
        expected = torch.cat([torch.cat([a * cos - b * turn, b * cos + a * turn], -1), v.float()], 1).flatten(1)
        found = turned(q, k, v, cos, sin, back).float()
        if not torch.allclose(found, expected, atol=1e-5, rtol=2 * torch.finfo(dtype).eps):
            return False
    return True


@cache
def has_rotating_kernel(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    fits = head_dim in (16, 32, 64, 128, 256) and dtype in (torch.bfloat16, torch.float16)
    trials = (partial(_agrees, device, dtype, asked, key_heads, head_dim) for asked in (heads, 0))
    return fits and holds("rotations", device, lambda: all(trial() for trial in trials))


def _agrees(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    """Tokens beside which something else lies in memory, and slots of which nobody writes every second."""
    generator, tokens = torch.Generator(device).manual_seed(0), 37
    width = (heads + 2 * key_heads) * head_dim
    wide = torch.randn(tokens, width + 16, generator=generator, device=device).to(dtype)
    before = wide.clone()
    positions_N = torch.randint(0, 9, (tokens,), generator=generator, device=device)
    angles = torch.randn(9, head_dim // 2, generator=generator, device=device)
    turns = torch.polar(torch.ones_like(angles), angles)
    slots_N = 2 * torch.randperm(tokens, generator=generator, device=device)
    keys, values = (torch.zeros(2 * tokens, key_heads, head_dim, dtype=dtype, device=device) for _ in "kv")
    rotate_and_put(wide[:, :width], heads, positions_N, torch.view_as_real(turns), slots_N, keys, values)
    qk, v = before[:, :width].unflatten(1, (-1, head_dim)).split((heads + key_heads, key_heads), 1)
    pairs = torch.view_as_complex(qk.float().unflatten(-1, (-1, 2))) * turns[positions_N, None]
    expected = torch.cat([torch.view_as_real(pairs).flatten(-2).to(dtype), v], 1)
    found = wide[:, :width].unflatten(1, (-1, head_dim))
    close = partial(torch.allclose, atol=1e-5, rtol=2 * torch.finfo(dtype).eps)
    return (
        close(found.float(), expected.float())
        and torch.equal(wide[:, width:], before[:, width:])
        and torch.equal(keys[slots_N], found[:, heads : heads + key_heads])
        and torch.equal(values[slots_N], v)
        and not keys[1::2].any()
        and not values[1::2].any()
    )
