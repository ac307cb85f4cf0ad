"""Attention of prompt tokens that ride along in a decode step, a block of a few at a time.

    out = softmax(R q · [k₀ … k₍c₋₁₎, R kₒ … R kₜ] · scale) [v₀ … vₜ]      t the token's own position

Of a prompt, columns 0 … c−1 were read in earlier steps and lie in the cache; tokens c … t are read in this step. Their keys and
values come from where the step has just computed them, not from the cache: no block waits for what another one writes there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from tacit.engines.local.passes.kernels import early, holds, on_its_device
from tacit.engines.local.passes.packing import power_from
from tacit.engines.local.passes.ways import Ways

TOKENS = 16
"""of a block: the smallest side of a matrix product on the device. All of them are of one prompt"""
DESCRIBED = 4
"""numbers that describe a block: the place of its row; how many of the prompt's tokens lie in the cache; where in the chunk its
first token of this step is; and how many tokens of the block are real, 0 where it is nobody's"""
MOST_HEADS = 4
"""query heads of a program: 64 rows of queries are what the device multiplies at once"""
BLOCK, FRESH, WARPS = 64, 32, 4
"""cached columns, and tokens of this step, that a program looks at together, and its warps"""
LARGE = 128
"""dimensions of a head above which three stages of columns do not fit into the memory that all kinds of devices have"""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Prompt tokens of one step. Blocks of one prompt lie one after the other, and all but the last of them are full."""

    tokens_C: torch.Tensor
    positions_C: torch.Tensor
    blocks_N4: torch.Tensor
    """see DESCRIBED"""


@on_its_device
def attend_chunk(
    q_CHD: torch.Tensor,
    k_CGD: torch.Tensor,
    v_CGD: torch.Tensor,
    keys_BSGD: torch.Tensor,
    values_BSGD: torch.Tensor,
    blocks_N4: torch.Tensor,
    rotations_C: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Writes `out` [C, query heads · head_dim], and the keys and values into the cache. Tokens may lie apart from each other in
    memory; a token's own heads may not. Queries, keys and rotations are as in step_attention."""
    from tacit.engines.local.passes import step_kernel  # triton is only there where there is a GPU

    _, heads, dim = q_CHD.shape
    kv_heads, capacity = keys_BSGD.shape[2], keys_BSGD.shape[1]
    group = heads // kv_heads
    together = min(MOST_HEADS, power_from(group))
    step_kernel.attend_chunk[(len(blocks_N4), kv_heads, -(-group // together))](
        q_CHD,
        k_CGD,
        v_CGD,
        keys_BSGD,
        values_BSGD,
        blocks_N4,
        rotations_C,
        out,
        scale,
        q_CHD.stride(0),
        k_CGD.stride(0),
        v_CGD.stride(0),
        out.stride(0),
        capacity,
        KV=kv_heads,
        GROUP=group,
        DIM=dim,
        TOKENS=TOKENS,
        HEADS=together,
        BLOCK=BLOCK,
        FRESH=FRESH,
        num_warps=WARPS,
        num_stages=3 if dim <= LARGE else 2,
        **early(q_CHD.device),
    )


def attend_chunk_plainly(
    q_CHD: torch.Tensor,
    k_CGD: torch.Tensor,
    v_CGD: torch.Tensor,
    keys_BSGD: torch.Tensor,
    values_BSGD: torch.Tensor,
    blocks_N4: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """The same in torch's operations, of queries and keys that are rotated; the host reads what the blocks are."""
    found_CHD, group = torch.zeros_like(q_CHD), q_CHD.shape[1] // k_CGD.shape[1]
    for number, (place, cached, begin, count) in enumerate(blocks_N4.tolist()):
        if not count:
            continue
        own, end = number * TOKENS, number * TOKENS + count
        k, v = (
            torch.cat((there[place, :cached], new[begin:end])).transpose(0, 1).repeat_interleave(group, 0)
            for there, new in ((keys_BSGD, k_CGD), (values_BSGD, v_CGD))
        )
        sees = torch.arange(k.shape[1], device=k.device) <= cached - begin + torch.arange(own, end, device=k.device)[:, None]
        found = scaled_dot_product_attention(q_CHD[own:end].transpose(0, 1), k, v, attn_mask=sees, scale=scale)
        found_CHD[own:end] = found.transpose(0, 1)
        for there, new in ((keys_BSGD, k_CGD), (values_BSGD, v_CGD)):
            there[place, cached + own - begin : cached + end - begin] = new[own:end]
    return found_CHD.flatten(1)


@cache
def has_chunk_kernel(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    fits = head_dim in (16, 32, 64, 128, 256) and dtype in (torch.bfloat16, torch.float16)
    return fits and holds(
        "the attention of prompts in a step", device, partial(_agrees, device, dtype, kv_heads, queries_per_kv, head_dim)
    )


TRIAL = (
    *((2, 0, 0, 16), (2, 0, 0, 16), (2, 0, 0, 3)),
    *((0, 150, 48, 16), (0, 150, 48, 16), (0, 0, 0, 0), (3, 1, 96, 1), (1, 64, 112, 9)),
)
"""blocks: a prompt that begins, one that goes on, nobody's, one of a single token, and one behind a full block of columns"""


def _agrees(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    """In a cache and beside tokens that are infinite wherever nobody may read."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    blocks_N4, rows, capacity, scale = torch.tensor(TRIAL, device=device), 4, 320, head_dim**-0.5
    tokens = len(TRIAL) * TOKENS
    q, k, v = (random(tokens, kv_heads * size, head_dim) for size in (queries_per_kv, 1, 1))
    keys, values = (random(rows, capacity, kv_heads, head_dim) for _ in range(2))
    real, used = (
        (torch.arange(TOKENS, device=device) < blocks_N4[:, 3:]).flatten(),
        blocks_N4[:, 3].repeat_interleave(TOKENS) > 0,
    )
    for place, cached, _, count in TRIAL:
        for there in (keys, values):
            there[place, cached if count else capacity :] = float("inf")
    for new in (q, k, v):
        new[~real] = float("inf")
    turns = torch.polar(torch.ones(tokens, head_dim // 2, device=device), random(tokens, head_dim // 2).float())
    found = torch.full((tokens, q[0].numel()), float("nan"), dtype=dtype, device=device)
    new_keys, new_values = keys.clone(), values.clone()
    attend_chunk(q, k, v, new_keys, new_values, blocks_N4, torch.view_as_real(turns), scale, found)
    q, k = (Ways.rotated(x, turns[:, None]) for x in (q, k))
    q, k, v, keys, values = (x.float() for x in (q, k, v, keys, values))
    expected = attend_chunk_plainly(q, k, v, keys, values, blocks_N4, scale)
    return (
        torch.allclose(found[real].float(), expected[real], atol=2e-2, rtol=2e-2)
        and bool(torch.isfinite(found).all())
        and not found[~used].any()
        and torch.allclose(new_keys.float(), keys, atol=2e-2, rtol=2e-2)
        and torch.equal(new_values.float(), values)
    )
