"""One decode step's attention as a kernel of its own: rotate, write the new key and value, then attend, in one launch.

    out = softmax(R q · [k₀ … R kₜ] · scale) [v₀ … vₜ]      t the row's own position, R its rotation; kₜ and vₜ are the new ones

Each program has one row and one key head, reads exactly the columns that row has, and keeps the running maximum and sum of the
softmax as it goes. Torch's fused kernel reads a window common to all rows instead, under a mask. Where rows and key heads are
too few to keep the device busy, several programs have a part of the columns each, and a second launch joins what they found:

    out = Σₚ exp(mₚ − m) aₚ / Σₚ exp(mₚ − m) sₚ      m the highest score, s and a the sums of weights, and of weighted values
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from tacit.engines.local.passes.kernels import early, holds, on_its_device
from tacit.engines.local.passes.ways import Ways

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


@on_its_device
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
    from tacit.engines.local.passes.step_kernel import attend_one, join_parts  # triton is only there where there is a GPU

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
        **early(q_BHD.device),
    )
    if parts > 1:
        shape = {"KV": kv_heads, "GROUP": heads // kv_heads, "PADDED": LEAST, "DIM": dim, "PARTS": parts}
        join_parts[(rows, heads)](found, peaks, out, **shape, num_warps=1, **early(q_BHD.device))
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


@cache
def has_step_kernel(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
    fits = queries_per_kv <= LEAST and head_dim in (16, 32, 64, 128, 256) and dtype in (torch.bfloat16, torch.float16)
    return fits and holds(
        "the attention of a step", device, partial(_agrees, device, dtype, kv_heads, queries_per_kv, head_dim)
    )


def _agrees(device: torch.device, dtype: torch.dtype, kv_heads: int, queries_per_kv: int, head_dim: int) -> bool:
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
    q, k = (Ways.rotated(x, turns[:, None]) for x in (q, k))
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
