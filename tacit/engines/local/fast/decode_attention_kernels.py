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
    """One program per slot, key head and split of the positions."""
    wait_for_previous_kernel(EARLY)
    attend_split(
        tl.program_id(0), tl.program_id(1), tl.program_id(2), q, k_new, v_new, keys, values, positions, rotations, out,
        partial, peaks, scale, q_row, k_row, v_row, capacity, KV, GROUP, PADDED, DIM, BLOCK, SPLITS,
    )  # fmt: skip


@triton.jit
def attend_split(
    row, head, split, q, k_new, v_new, keys, values, positions, rotations, out, partial, peaks, scale, q_row, k_row,
    v_row, capacity,
    KV: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """The first split also has the new token."""
    row = row.to(tl.int64)
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


@triton.jit
def apply_rope(x, rotation, ROWS: tl.constexpr, DIM: tl.constexpr):
    """RoPE: (a + ib)(cos + i sin) for every pair of a row, in float32 and rounded once."""
    cos, sin = tl.split(tl.reshape(rotation, (ROWS, DIM // 2, 2)))
    a, b = tl.split(tl.reshape(x.to(tl.float32), (ROWS, DIM // 2, 2)))
    return tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (ROWS, DIM)).to(x.dtype)


@triton.jit
def chunk_attention_kernel(
    q, k_new, v_new, keys, values, blocks, rotations, out, scale, q_row, k_row, v_row, out_row, capacity,
    KV: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr, FRESH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program per block of prompt tokens, key head, and up to HEADS of its query heads."""
    wait_for_previous_kernel(EARLY)
    attend_prompt_block(
        tl.program_id(0), tl.program_id(1), tl.program_id(2), q, k_new, v_new, keys, values, blocks, rotations, out, scale,
        q_row, k_row, v_row, out_row, capacity, KV, GROUP, DIM, BLOCK_TOKENS, HEADS, BLOCK, FRESH,
    )  # fmt: skip


@triton.jit
def attend_prompt_block(
    block, head, first_head, q, k_new, v_new, keys, values, blocks, rotations, out, scale, q_row, k_row, v_row, out_row,
    capacity,
    KV: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr, FRESH: tl.constexpr,
):  # fmt: skip
    """HEADS · TOKENS queries."""
    first_head = first_head * HEADS
    fields = blocks + block * 4
    slot = tl.load(fields)
    cached = tl.load(fields + 1).to(tl.int32)
    begin = tl.load(fields + 2).to(tl.int32)
    count = tl.load(fields + 3).to(tl.int32)
    own = block * BLOCK_TOKENS
    dims = tl.arange(0, DIM)
    queries = tl.arange(0, HEADS * BLOCK_TOKENS)
    # Padding repeats the last token of the block, and the last head.
    last = tl.maximum(count - 1, 0)
    tokens = own + tl.minimum(queries % BLOCK_TOKENS, last)
    q_head = tl.minimum(first_head + queries // BLOCK_TOKENS, GROUP - 1)
    rotation = tl.load(rotations + tokens[:, None] * DIM + dims[None, :])
    query = tl.load(q + tokens[:, None].to(tl.int64) * q_row + (head * GROUP + q_head)[:, None] * DIM + dims[None, :])
    query = apply_rope(query, rotation, HEADS * BLOCK_TOKENS, DIM)
    first = (slot * capacity * KV + head) * DIM
    # Store the block's own keys and values; nothing reads them before the next step.
    fresh = tl.arange(0, BLOCK_TOKENS)
    token_rows = own + tl.minimum(fresh, last)
    to = first + (cached + own - begin + fresh)[:, None].to(tl.int64) * (KV * DIM) + dims[None, :]
    real = (fresh[:, None] < count) & (dims[None, :] < tl.where(first_head == 0, DIM, 0))
    key = tl.load(k_new + token_rows[:, None].to(tl.int64) * k_row + head * DIM + dims[None, :])
    value = tl.load(v_new + token_rows[:, None].to(tl.int64) * v_row + head * DIM + dims[None, :])
    key = apply_rope(key, tl.load(rotations + token_rows[:, None] * DIM + dims[None, :]), BLOCK_TOKENS, DIM)
    tl.store(keys + to, key, mask=real)
    tl.store(values + to, value, mask=real)
    max_score = tl.zeros([HEADS * BLOCK_TOKENS], tl.float32) - float("inf")
    total = tl.zeros([HEADS * BLOCK_TOKENS], tl.float32)
    acc = tl.zeros([HEADS * BLOCK_TOKENS, DIM], tl.float32)
    # First this step's tokens of the prompt, up to the query itself, with RoPE applied on the fly. All queries see the first of
    # them, so no highest score stays −∞. A padding block has none.
    end = tl.where(count > 0, own + count, begin)
    for start in range(begin, end, FRESH):
        columns = start + tl.arange(0, FRESH)
        columns_clamped = tl.minimum(columns, end - 1)
        k_block = tl.load(k_new + columns_clamped[:, None].to(tl.int64) * k_row + head * DIM + dims[None, :])
        v_block = tl.load(v_new + columns_clamped[:, None].to(tl.int64) * v_row + head * DIM + dims[None, :])
        k_block = apply_rope(k_block, tl.load(rotations + columns_clamped[:, None] * DIM + dims[None, :]), FRESH, DIM)
        scores = tl.dot(query, tl.trans(k_block)) * scale
        scores = tl.where(columns[None, :] <= tokens[:, None], scores, -float("inf"))
        new_max = tl.maximum(max_score, tl.max(scores, 1))
        weights = tl.exp(scores - new_max[:, None])
        rescale = tl.exp(max_score - new_max)
        total = total * rescale + tl.sum(weights, 1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v_block.dtype), v_block)
        max_score = new_max
    # Then the cached tokens of earlier steps, which every query sees.
    before = tl.where(count > 0, cached, 0)
    for start in range(0, before, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        offsets = first + tl.minimum(columns, before - 1)[:, None].to(tl.int64) * (KV * DIM) + dims[None, :]
        k_block = tl.load(keys + offsets)
        v_block = tl.load(values + offsets)
        scores = tl.dot(query, tl.trans(k_block)) * scale
        scores = tl.where((columns < before)[None, :], scores, -float("inf"))
        new_max = tl.maximum(max_score, tl.max(scores, 1))
        weights = tl.exp(scores - new_max[:, None])
        rescale = tl.exp(max_score - new_max)
        total = total * rescale + tl.sum(weights, 1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v_block.dtype), v_block)
        max_score = new_max
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]  # zeros for a padding block
    out_head = first_head + queries // BLOCK_TOKENS
    out_offsets = (own + queries % BLOCK_TOKENS)[:, None].to(tl.int64) * out_row + (head * GROUP + out_head)[:, None] * DIM
    tl.store(out + out_offsets + dims[None, :], acc.to(query.dtype), mask=out_head[:, None] < GROUP)
