"""One decode step's attention as a kernel of its own: rotate, write the new key and value, then attend, in one launch.

    out = softmax(R q · [k₀ … R kₜ] · scale) [v₀ … vₜ]      t the row's own position, R its rotation; kₜ and vₜ are the new ones

Each program has one row and one key head, reads exactly the columns that row has, and keeps the running maximum and sum of the
softmax as it goes. Torch's fused kernel reads a window common to all rows instead, under a mask. Where rows and key heads are
too few to keep the device busy, several programs have a part of the columns each, and a second launch joins what they found:

    out = Σₚ exp(mₚ − m) aₚ / Σₚ exp(mₚ − m) sₚ      m the highest score, s and a the sums of weights, and of weighted values
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from tacit.engines.local.fast.compiled import SamplerOps
from tacit.engines.local.fast.kernels import capability_probe, early_launch_options, is_kernel_usable, on_tensor_device
from tacit.engines.local.packing import next_power_of_two

LEAST = 16
"""the smallest side of a matrix product on the device; the query heads of a key head are padded to it"""
A_PROCESSOR = 1.5
"""programs that keep one processor busy. More parts than that cost more than they bring: of 523 columns, 1, 2 and 4 parts take
12.9, 11.0 and 9.5 µs at 16 rows of two heads of 128, and 14.9, 16.4 and 18.1 µs at 64, on an H200 with 132 processors"""
MOST_PARTS = 8
FEW = {"BLOCK": 64, "num_warps": 4, "num_stages": 3}
MANY = {"BLOCK": 32, "num_warps": 2, "num_stages": 4}
"""columns that are looked at together, by how many warps, and how far ahead they are asked for; where there are more than two
programs for a processor, small ones share it better. Of 523 columns FEW and MANY take 14.3 and 15.2 µs at 64 rows of two heads
of 128, and 44.8 and 37.5 at 256; of three heads of 64 12.2 and 12.5, and 38.7 and 29.6"""


@on_tensor_device
def attend_step(
    q_BHD: torch.Tensor,
    k_BGD: torch.Tensor,
    v_BGD: torch.Tensor,
    keys_BSGD: torch.Tensor,
    values_BSGD: torch.Tensor,
    positions_B: torch.Tensor,
    rotations_B: torch.Tensor,
    scale: float,
    parts: int = 0,
    launch: Mapping[str, int] | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """[B, query heads · head_dim]. Rows may lie apart from each other in memory; a row's own heads may not. `parts`: of a row's
    columns, a power of two; 0 is as many as the device can use, and so with how they are launched. `out`: where it goes, one
    row right behind the other.

    Queries and keys keep the two halves of each rotated pair side by side. `rotations_B` [B, head_dim / 2, 2] are cosine and
    sine at each row's position, in float32."""
    rows, heads, dim = q_BHD.shape
    kv_heads, capacity = keys_BSGD.shape[2], keys_BSGD.shape[1]
    parts = parts or _parts(rows * kv_heads, q_BHD.device)
    launch = launch or launch_of(rows * kv_heads * parts, q_BHD.device)
    if out is None:
        out = torch.empty(rows, heads * dim, dtype=q_BHD.dtype, device=q_BHD.device)
    found, peaks = (
        out.new_empty((rows, kv_heads, parts, LEAST, size) if parts > 1 else 0, dtype=torch.float32) for size in (dim, 2)
    )
    from tacit.engines.local.fast.decode_attention_kernels import (  # triton is only there where there is a GPU
        attend_one,
        join_parts,
    )

    attend_one[(rows, kv_heads, parts)](
        q_BHD,
        k_BGD,
        v_BGD,
        keys_BSGD,
        values_BSGD,
        positions_B,
        rotations_B,
        out,
        found,
        peaks,
        scale,
        q_BHD.stride(0),
        k_BGD.stride(0),
        v_BGD.stride(0),
        capacity,
        KV=kv_heads,
        GROUP=heads // kv_heads,
        PADDED=LEAST,
        DIM=dim,
        PARTS=parts,
        **launch,
        **early_launch_options(q_BHD.device),
    )
    if parts > 1:
        shape = {"KV": kv_heads, "GROUP": heads // kv_heads, "PADDED": LEAST, "DIM": dim, "PARTS": parts}
        join_parts[(rows, heads)](found, peaks, out, **shape, num_warps=1, **early_launch_options(q_BHD.device))
    return out


def launch_of(programs: int, device: torch.device) -> Mapping[str, int]:
    return FEW if programs <= 2 * _processors(device) else MANY


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _parts(programs: int, device: torch.device) -> int:
    """So many that every processor of the device has something to read, where a power of two of them allows it."""
    wanted = A_PROCESSOR * _processors(device)
    parts = 1
    while parts < MOST_PARTS and 2 * parts * programs <= wanted:
        parts *= 2
    return parts


@capability_probe
def has_step_kernel(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    fits = queries_per_kv <= LEAST and head_dim in (16, 32, 64, 128, 256) and dtype in (torch.bfloat16, torch.float16)
    return fits and is_kernel_usable(
        "the attention of a step", device, partial(_step_agrees, device, dtype, kv_heads, queries_per_kv, head_dim)
    )


def _step_agrees(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    positions = torch.tensor([0, 1, 150, 299], device=device)
    rows, capacity = len(positions), 320
    q, k, v = (
        random(rows, kv_heads * queries_per_kv, head_dim),
        random(rows, kv_heads, head_dim),
        random(rows, kv_heads, head_dim),
    )
    keys, values = random(rows, capacity, kv_heads, head_dim), random(rows, capacity, kv_heads, head_dim)
    for cached in (keys, values):
        cached[torch.arange(capacity, device=device) > positions[:, None]] = float("inf")  # which no row may read
    scale = head_dim**-0.5
    turns = torch.polar(torch.ones(rows, head_dim // 2, device=device), random(rows, head_dim // 2).float())
    rotations, old_keys, old_values = torch.view_as_real(turns), keys.clone(), values.clone()
    found = attend_step(q, k, v, keys, values, positions, rotations, scale, 1, FEW)
    for parts, launch in ((1, MANY), (2, FEW), (4, FEW), (MOST_PARTS, FEW)):
        there = old_keys.clone(), old_values.clone()
        other = attend_step(q, k, v, there[0], there[1], positions, rotations, scale, parts, launch)
        same = torch.equal(there[0], keys) and torch.equal(there[1], values)
        if not (same and torch.allclose(other.float(), found.float(), atol=2e-2, rtol=2e-2)):
            return False
    q, k = (SamplerOps.rotated(x, turns[:, None]) for x in (q, k))
    for row, position in enumerate(positions.tolist()):
        own_k, own_v = keys[row, : position + 1].float(), values[row, : position + 1].float()
        close = torch.allclose(own_k[-1], k[row].float(), atol=2e-2, rtol=2e-2)
        if not (close and torch.equal(own_v[-1], v[row].float())):
            return False
        expected = scaled_dot_product_attention(
            q[row].float().view(kv_heads, queries_per_kv, head_dim), own_k.transpose(0, 1), own_v.transpose(0, 1), scale=scale
        )
        if not torch.allclose(found[row].float(), expected.flatten(), atol=2e-2, rtol=2e-2):
            return False
    return True


# Attention of prompt tokens that ride along in a decode step, a block of a few at a time.
#
#     out = softmax(R q · [k₀ … k₍c₋₁₎, R kₒ … R kₜ] · scale) [v₀ … vₜ]      t the token's own position
#
# Of a prompt, columns 0 … c−1 were read in earlier steps and lie in the cache; tokens c … t are read in this step. Their keys
# and
# values come from where the step has just computed them, not from the cache: no block waits for what another one writes there.

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


@on_tensor_device
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
    from tacit.engines.local.fast import decode_attention_kernels  # triton is only there where there is a GPU

    _, heads, dim = q_CHD.shape
    kv_heads, capacity = keys_BSGD.shape[2], keys_BSGD.shape[1]
    group = heads // kv_heads
    together = min(MOST_HEADS, next_power_of_two(group))
    decode_attention_kernels.attend_chunk[(len(blocks_N4), kv_heads, -(-group // together))](
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
        **early_launch_options(q_CHD.device),
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


@capability_probe
def has_chunk_kernel(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    fits = head_dim in (16, 32, 64, 128, 256) and dtype in (torch.bfloat16, torch.float16)
    return fits and is_kernel_usable(
        "the attention of prompts in a step", device, partial(_chunk_agrees, device, dtype, kv_heads, queries_per_kv, head_dim)
    )


TRIAL = (
    *((2, 0, 0, 16), (2, 0, 0, 16), (2, 0, 0, 3)),
    *((0, 150, 48, 16), (0, 150, 48, 16), (0, 0, 0, 0), (3, 1, 96, 1), (1, 64, 112, 9)),
)
"""blocks: a prompt that begins, one that goes on, nobody's, one of a single token, and one behind a full block of columns"""


def _chunk_agrees(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
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
    q, k = (SamplerOps.rotated(x, turns[:, None]) for x in (q, k))
    q, k, v, keys, values = (x.float() for x in (q, k, v, keys, values))
    expected = attend_chunk_plainly(q, k, v, keys, values, blocks_N4, scale)
    return (
        torch.allclose(found[real].float(), expected[real], atol=2e-2, rtol=2e-2)
        and bool(torch.isfinite(found).all())
        and not found[~used].any()
        and torch.allclose(new_keys.float(), keys, atol=2e-2, rtol=2e-2)
        and torch.equal(new_values.float(), values)
    )


# Attention of a decode step in which prompts are read along: rows (step_attention.py) and blocks of prompts
# (chunk_attention.py) in one launch.
#
# Neither fills a device: one after the other takes as long as both, side by side as long as the longer. So rows are in one part
# each, however few they are. Blocks read nothing that rows write, and rows nothing that blocks write, but for those rows that
# run along unread at the place of a prompt that is being read (mixing.py): what these compute is nobody's, and in no order.


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


@on_tensor_device
def _at_once(q_NHD: torch.Tensor, beside: Beside) -> torch.Tensor:
    from tacit.engines.local.fast.decode_attention_kernels import attend_both  # triton is only there where there is a GPU

    k_NGD, v_NGD, keys_BSGD, values_BSGD, positions_B, blocks_N4, rotations_N, scale = beside
    (tokens, heads, dim), kv_heads, rows = q_NHD.shape, keys_BSGD.shape[2], len(positions_B)
    group = heads // kv_heads
    together = min(MOST_HEADS, next_power_of_two(group))
    of_prompts = len(blocks_N4) * kv_heads * -(-group // together)
    out_NF = torch.empty(tokens, heads * dim, dtype=q_NHD.dtype, device=q_NHD.device)
    attend_both[(of_prompts + rows * kv_heads,)](
        q_NHD, k_NGD, v_NGD, keys_BSGD, values_BSGD, positions_B, blocks_N4, rotations_N, out_NF, scale,
        q_NHD.stride(0), k_NGD.stride(0), v_NGD.stride(0), out_NF.stride(0), keys_BSGD.shape[1], rows, of_prompts,
        KV=kv_heads, GROUP=group, PADDED=LEAST, DIM=dim, ROW_BLOCK=FEW["BLOCK"], TOKENS=TOKENS, HEADS=together,
        BLOCK=BLOCK, FRESH=FRESH, num_warps=WARPS, num_stages=FEW["num_stages"], **early_launch_options(q_NHD.device),
    )  # fmt: skip
    return out_NF


@capability_probe
def has_mixed_kernel(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    """Where there are kernels for both, with as many stages."""
    sizes = (device, dtype, kv_heads, queries_per_kv, head_dim)
    if head_dim > LARGE or not (has_step_kernel(*sizes) and has_chunk_kernel(*sizes)):
        return False
    return is_kernel_usable("the attention of rows and prompts at once", device, partial(_mixed_agrees, *sizes))


def _mixed_agrees(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
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
