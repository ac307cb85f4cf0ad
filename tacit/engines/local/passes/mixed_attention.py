"""Attention of a decode step in which prompts are read along: rows (step_attention.py) and blocks of prompts
(chunk_attention.py) in one launch.

Neither fills a device: one after the other takes as long as both, side by side as long as the longer. So rows are in one part
each, however few they are. Blocks read nothing that rows write, and rows nothing that blocks write, but for those rows that run
along unread at the place of a prompt that is being read (mixing.py): what these compute is nobody's, and in no order.
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import torch

from tacit.engines.local.passes.chunk_attention import (
    BLOCK,
    FRESH,
    LARGE,
    MOST_HEADS,
    TOKENS,
    TRIAL,
    WARPS,
    attend_chunk,
    has_chunk_kernel,
)
from tacit.engines.local.passes.kernels import early, holds, on_its_device
from tacit.engines.local.passes.packing import power_from
from tacit.engines.local.passes.step_attention import FEW, LEAST, attend_step, has_step_kernel, launch_of


class Beside(NamedTuple):
    """What queries are attended with: rows' and, behind them, those of prompt tokens."""

    k_NGD: torch.Tensor
    v_NGD: torch.Tensor
    keys_BSGD: torch.Tensor
    values_BSGD: torch.Tensor
    """the cache, into which the new keys and values go"""
    positions_B: torch.Tensor
    """of the rows"""
    blocks_N4: torch.Tensor
    """of the prompts"""
    rotations_N: torch.Tensor
    scale: float


def attend_mixed(q_NHD: torch.Tensor, beside: Beside) -> torch.Tensor:
    """[N, query heads · head_dim]"""
    (_, heads, dim), kv_heads, rows = q_NHD.shape, beside.keys_BSGD.shape[2], len(beside.positions_B)
    # where rows alone are so many that they come in small programs, prompts would have to as well
    few = launch_of(rows * kv_heads, q_NHD.device) is FEW
    at_once = few and has_mixed_kernel(q_NHD.device, q_NHD.dtype, kv_heads, heads // kv_heads, dim)
    return (_at_once if at_once else _one_after_the_other)(q_NHD, beside)


def _one_after_the_other(q_NHD: torch.Tensor, beside: Beside) -> torch.Tensor:
    k_NGD, v_NGD, keys_BSGD, values_BSGD, positions_B, blocks_N4, rotations_N, scale = beside
    out_NF, rows = torch.empty(len(q_NHD), q_NHD[0].numel(), dtype=q_NHD.dtype, device=q_NHD.device), len(positions_B)
    (q, k, v, turns, out), (q_C, k_C, v_C, turns_C, out_C) = zip(
        *((x[:rows], x[rows:]) for x in (q_NHD, k_NGD, v_NGD, rotations_N, out_NF)), strict=True
    )
    attend_step(q, k, v, keys_BSGD, values_BSGD, positions_B, turns, scale, out=out)
    attend_chunk(q_C, k_C, v_C, keys_BSGD, values_BSGD, blocks_N4, turns_C, scale, out_C)
    return out_NF


@on_its_device
def _at_once(q_NHD: torch.Tensor, beside: Beside) -> torch.Tensor:
    from tacit.engines.local.passes.step_kernel import attend_both  # triton is only there where there is a GPU

    k_NGD, v_NGD, keys_BSGD, values_BSGD, positions_B, blocks_N4, rotations_N, scale = beside
    (tokens, heads, dim), kv_heads, rows = q_NHD.shape, keys_BSGD.shape[2], len(positions_B)
    group = heads // kv_heads
    together = min(MOST_HEADS, power_from(group))
    of_prompts = len(blocks_N4) * kv_heads * -(-group // together)
    out_NF = torch.empty(tokens, heads * dim, dtype=q_NHD.dtype, device=q_NHD.device)
    attend_both[(of_prompts + rows * kv_heads,)](
        q_NHD, k_NGD, v_NGD, keys_BSGD, values_BSGD, positions_B, blocks_N4, rotations_N, out_NF, scale,
        q_NHD.stride(0), k_NGD.stride(0), v_NGD.stride(0), out_NF.stride(0), keys_BSGD.shape[1], rows, of_prompts,
        KV=kv_heads, GROUP=group, PADDED=LEAST, DIM=dim, ROW_BLOCK=FEW["BLOCK"], TOKENS=TOKENS, HEADS=together,
        BLOCK=BLOCK, FRESH=FRESH, num_warps=WARPS, num_stages=FEW["num_stages"], **early(q_NHD.device),
    )  # fmt: skip
    return out_NF


@cache
def has_mixed_kernel(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    """Where there are kernels for both, with as many stages."""
    sizes = (device, dtype, kv_heads, queries_per_kv, head_dim)
    if head_dim > LARGE or not (has_step_kernel(*sizes) and has_chunk_kernel(*sizes)):
        return False
    return holds("the attention of rows and prompts at once", device, partial(_agrees, *sizes))


def _agrees(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    """With what the two compute one after the other, of one row and of several."""
    generator, blocks_N4 = torch.Generator(device).manual_seed(0), torch.tensor(TRIAL, device=device)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    for rows in (1, 9):
        tokens, capacity, scale = rows + len(TRIAL) * TOKENS, 192, head_dim**-0.5
        q, k, v = (random(tokens, kv_heads * size, head_dim) for size in (queries_per_kv, 1, 1))
        keys, values = (random(rows + 4, capacity, kv_heads, head_dim) for _ in range(2))
        turns = torch.view_as_real(torch.polar(torch.ones(tokens, head_dim // 2, device=device), q[:, 0, ::2].float()))
        positions = torch.arange(rows, device=device) * 23 % capacity
        blocks = blocks_N4 + torch.tensor([rows, 0, 0, 0], device=device)  # behind the rows' own places
        ways = []
        for way in (_one_after_the_other, _at_once):
            cached = keys.clone(), values.clone()
            ways.append((way(q, Beside(k, v, *cached, positions, blocks, turns, scale)), *cached))
        if not all(torch.allclose(x.float(), y.float(), atol=2e-2, rtol=2e-2) for x, y in zip(*ways, strict=True)):
            return False
    return True
