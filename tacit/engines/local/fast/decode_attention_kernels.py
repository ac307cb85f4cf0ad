"""Triton kernels of decode_attention.py. Import only where triton is installed."""

from __future__ import annotations

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older triton, without programmatic dependent launch
    gdc_launch_dependents = gdc_wait = None


@triton.jit
def wait_for_previous_kernel(EARLY: tl.constexpr):
    """Programmatic dependent launch: wait until all earlier kernels are done, then let the next kernel start and wait in turn.
    Every program of an early-launched kernel must call this, since later kernels rely on it. Before the call it must write
    nothing, and read only what neither of the two preceding kernels writes: library kernels may be launched early, too."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def decode_attention_kernel(
    q, k_new, v_new, keys, values, positions, rotations, out, partial, peaks, scale, q_row, k_row, v_row, capacity,
    KV: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program per slot, key head and split of the positions. The first split also has the new token."""
    wait_for_previous_kernel(EARLY)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    first_split = split == 0
    dims = tl.arange(0, DIM)
    queries = tl.arange(0, PADDED)
    # All loads before the cached keys are issued together: one wait. The new key, value and rotation are replicated for every
    # query. Padding repeats the last query, or the last position.
    position = tl.load(positions + row)
    own = tl.minimum(queries, GROUP - 1)[:, None] * DIM + dims[None, :]
    same = queries[:, None] * 0 + dims[None, :]
    query = tl.load(q + row * q_row + head * GROUP * DIM + own)
    rotation = tl.load(rotations + row * DIM + same)
    key = tl.load(k_new + row * k_row + head * DIM + same)
    value = tl.load(v_new + row * v_row + head * DIM + same)
    # (a + ib)(cos + i sin) for every pair, of the queries and of the new key
    cos, sin = tl.split(tl.reshape(rotation, (PADDED, DIM // 2, 2)))
    a, b = tl.split(tl.reshape(query.to(tl.float32), (PADDED, DIM // 2, 2)))
    query = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (PADDED, DIM)).to(query.dtype)
    a, b = tl.split(tl.reshape(key.to(tl.float32), (PADDED, DIM // 2, 2)))
    key = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (PADDED, DIM)).to(key.dtype)
    first = (row * capacity * KV + head) * DIM
    new = queries[:, None] < tl.where(first_split, 1, 0)
    tl.store(keys + first + position * (KV * DIM) + same, key, mask=new)
    tl.store(values + first + position * (KV * DIM) + same, value, mask=new)
    # The new token comes from registers: a program does not read back what it stores.
    max_score = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
    # Weights are summed per column of a block, and these sums at the end: no reduction inside the loop.
    blocks = tl.arange(0, BLOCK)
    totals = tl.zeros([PADDED, BLOCK], tl.float32) + tl.where(blocks == 0, 1.0, 0.0)[None, :]
    acc = value.to(tl.float32)
    position = position.to(tl.int32)
    begin, end = 0, position
    if SPLITS > 1:
        max_score = tl.where(first_split, max_score, -float("inf"))
        totals = tl.where(first_split, totals, 0.0)
        acc = tl.where(first_split, acc, 0.0)
        size = tl.cdiv(tl.cdiv(position, SPLITS), BLOCK) * BLOCK
        begin, end = split * size, tl.minimum((split + 1) * size, position)
    for start in range(begin, end, BLOCK):
        columns = start + blocks
        offsets = first + tl.minimum(columns, end - 1)[:, None] * (KV * DIM) + dims[None, :]
        k_block = tl.load(keys + offsets)
        v_block = tl.load(values + offsets)  # loads while scores are computed
        scores = tl.dot(query, tl.trans(k_block)) * scale
        scores = tl.where((columns < end)[None, :], scores, -float("inf"))
        new_max = tl.maximum(max_score, tl.max(scores, 1))
        weights = tl.exp(scores - new_max[:, None])
        rescale = tl.exp(max_score - new_max)
        totals = totals * rescale[:, None] + weights
        acc = acc * rescale[:, None] + tl.dot(weights.to(v_block.dtype), v_block)
        max_score = new_max
    real = queries[:, None] < GROUP
    total = tl.sum(totals, 1)
    if SPLITS == 1:
        acc = acc / total[:, None]
        tl.store(out + row * (KV * GROUP * DIM) + head * GROUP * DIM + own, acc.to(query.dtype), mask=real)
    else:
        index = ((row * KV + head) * SPLITS + split) * PADDED + queries
        tl.store(partial + index[:, None] * DIM + dims[None, :], acc, mask=real)
        tl.store(peaks + 2 * index, max_score)
        tl.store(peaks + 2 * index + 1, total)


@triton.jit
def merge_splits_kernel(
    partial, peaks, out,
    KV: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One program per slot and query head merges its splits."""
    wait_for_previous_kernel(EARLY)
    row = tl.program_id(0).to(tl.int64)
    q_head = tl.program_id(1)
    dims = tl.arange(0, DIM)
    splits = tl.arange(0, SPLITS)
    index = ((row * KV + q_head // GROUP) * SPLITS + splits) * PADDED + q_head % GROUP
    max_score, total = tl.load(peaks + 2 * index), tl.load(peaks + 2 * index + 1)
    weight = tl.exp(max_score - tl.max(max_score, 0))  # an empty split has −∞ and weight 0
    found = tl.sum(tl.load(partial + index[:, None] * DIM + dims[None, :]) * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + (row * KV * GROUP + q_head) * DIM + dims, found.to(out.dtype.element_ty))
