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
    q,
    k_new,
    v_new,
    keys,
    values,
    positions,
    rotations,
    out,
    partial,
    peaks,
    scale,
    q_row,
    k_row,
    v_row,
    capacity,
    KV: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per slot, key head and split of the positions."""
    wait_for_previous_kernel(EARLY)
    attend_split(
        tl.program_id(0), tl.program_id(1), tl.program_id(2), q, k_new, v_new, keys, values, positions, rotations, out,
        partial, peaks, scale, q_row, k_row, v_row, capacity, KV, GROUP, PADDED, DIM, BLOCK, SPLITS,
    )  # fmt: skip


@triton.jit
def attend_split(
    row,
    head,
    split,
    q,
    k_new,
    v_new,
    keys,
    values,
    positions,
    rotations,
    out,
    partial,
    peaks,
    scale,
    q_row,
    k_row,
    v_row,
    capacity,
    KV: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):
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
    asking = tl.load(q + row * q_row + head * GROUP * DIM + own)
    turn = tl.load(rotations + row * DIM + same)
    key = tl.load(k_new + row * k_row + head * DIM + same)
    value = tl.load(v_new + row * v_row + head * DIM + same)
    # (a + ib)(cos + i sin) for every pair, of the queries and of the new key
    cos, sin = tl.split(tl.reshape(turn, (PADDED, DIM // 2, 2)))
    a, b = tl.split(tl.reshape(asking.to(tl.float32), (PADDED, DIM // 2, 2)))
    asking = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (PADDED, DIM)).to(asking.dtype)
    a, b = tl.split(tl.reshape(key.to(tl.float32), (PADDED, DIM // 2, 2)))
    key = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (PADDED, DIM)).to(key.dtype)
    first = (row * capacity * KV + head) * DIM
    new = queries[:, None] < tl.where(first_split, 1, 0)
    tl.store(keys + first + position * (KV * DIM) + same, key, mask=new)
    tl.store(values + first + position * (KV * DIM) + same, value, mask=new)
    # The new token comes from registers: a program does not read back what it stores.
    highest = tl.sum(asking.to(tl.float32) * key.to(tl.float32), 1) * scale
    # Weights are summed per column of a block, and these sums at the end: no reduction inside the loop.
    blocks = tl.arange(0, BLOCK)
    totals = tl.zeros([PADDED, BLOCK], tl.float32) + tl.where(blocks == 0, 1.0, 0.0)[None, :]
    answer = value.to(tl.float32)
    position = position.to(tl.int32)
    begin, end = 0, position
    if SPLITS > 1:
        highest = tl.where(first_split, highest, -float("inf"))
        totals = tl.where(first_split, totals, 0.0)
        answer = tl.where(first_split, answer, 0.0)
        size = tl.cdiv(tl.cdiv(position, SPLITS), BLOCK) * BLOCK
        begin, end = split * size, tl.minimum((split + 1) * size, position)
    for start in range(begin, end, BLOCK):
        columns = start + blocks
        offsets = first + tl.minimum(columns, end - 1)[:, None] * (KV * DIM) + dims[None, :]
        their_keys = tl.load(keys + offsets)
        their_values = tl.load(values + offsets)  # loads while scores are computed
        scores = tl.dot(asking, tl.trans(their_keys)) * scale
        scores = tl.where((columns < end)[None, :], scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        kept = tl.exp(highest - higher)
        totals = totals * kept[:, None] + weights
        answer = answer * kept[:, None] + tl.dot(weights.to(their_values.dtype), their_values)
        highest = higher
    real = queries[:, None] < GROUP
    total = tl.sum(totals, 1)
    if SPLITS == 1:
        answer = answer / total[:, None]
        tl.store(out + row * (KV * GROUP * DIM) + head * GROUP * DIM + own, answer.to(asking.dtype), mask=real)
    else:
        mine = ((row * KV + head) * SPLITS + split) * PADDED + queries
        tl.store(partial + mine[:, None] * DIM + dims[None, :], answer, mask=real)
        tl.store(peaks + 2 * mine, highest)
        tl.store(peaks + 2 * mine + 1, total)


@triton.jit
def merge_splits_kernel(
    partial,
    peaks,
    out,
    KV: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per slot and query head merges its splits."""
    wait_for_previous_kernel(EARLY)
    row = tl.program_id(0).to(tl.int64)
    asked = tl.program_id(1)
    dims = tl.arange(0, DIM)
    splits = tl.arange(0, SPLITS)
    theirs = ((row * KV + asked // GROUP) * SPLITS + splits) * PADDED + asked % GROUP
    highest, total = tl.load(peaks + 2 * theirs), tl.load(peaks + 2 * theirs + 1)
    weight = tl.exp(highest - tl.max(highest, 0))  # an empty split has −∞ and weight 0
    found = tl.sum(tl.load(partial + theirs[:, None] * DIM + dims[None, :]) * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + (row * KV * GROUP + asked) * DIM + dims, found.to(out.dtype.element_ty))


@triton.jit
def apply_rope(x, turn, ROWS: tl.constexpr, DIM: tl.constexpr):
    """RoPE: (a + ib)(cos + i sin) for every pair of a row, in float32 and rounded once."""
    cos, sin = tl.split(tl.reshape(turn, (ROWS, DIM // 2, 2)))
    a, b = tl.split(tl.reshape(x.to(tl.float32), (ROWS, DIM // 2, 2)))
    return tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (ROWS, DIM)).to(x.dtype)


@triton.jit
def chunk_attention_kernel(
    q,
    k_new,
    v_new,
    keys,
    values,
    blocks,
    rotations,
    out,
    scale,
    q_row,
    k_row,
    v_row,
    out_row,
    capacity,
    KV: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    FRESH: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per block of prompt tokens, key head, and up to HEADS of its query heads."""
    wait_for_previous_kernel(EARLY)
    attend_prompt_block(
        tl.program_id(0), tl.program_id(1), tl.program_id(2), q, k_new, v_new, keys, values, blocks, rotations, out, scale,
        q_row, k_row, v_row, out_row, capacity, KV, GROUP, DIM, BLOCK_TOKENS, HEADS, BLOCK, FRESH,
    )  # fmt: skip


@triton.jit
def attend_prompt_block(
    block,
    head,
    some,
    q,
    k_new,
    v_new,
    keys,
    values,
    blocks,
    rotations,
    out,
    scale,
    q_row,
    k_row,
    v_row,
    out_row,
    capacity,
    KV: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    FRESH: tl.constexpr,
):
    """HEADS · TOKENS queries."""
    some = some * HEADS
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
    asked = tl.minimum(some + queries // BLOCK_TOKENS, GROUP - 1)
    turn = tl.load(rotations + tokens[:, None] * DIM + dims[None, :])
    asking = tl.load(q + tokens[:, None].to(tl.int64) * q_row + (head * GROUP + asked)[:, None] * DIM + dims[None, :])
    asking = apply_rope(asking, turn, HEADS * BLOCK_TOKENS, DIM)
    first = (slot * capacity * KV + head) * DIM
    # Store the block's own keys and values; nothing reads them before the next step.
    fresh = tl.arange(0, BLOCK_TOKENS)
    here = own + tl.minimum(fresh, last)
    to = first + (cached + own - begin + fresh)[:, None].to(tl.int64) * (KV * DIM) + dims[None, :]
    real = (fresh[:, None] < count) & (dims[None, :] < tl.where(some == 0, DIM, 0))
    key = tl.load(k_new + here[:, None].to(tl.int64) * k_row + head * DIM + dims[None, :])
    value = tl.load(v_new + here[:, None].to(tl.int64) * v_row + head * DIM + dims[None, :])
    key = apply_rope(key, tl.load(rotations + here[:, None] * DIM + dims[None, :]), BLOCK_TOKENS, DIM)
    tl.store(keys + to, key, mask=real)
    tl.store(values + to, value, mask=real)
    highest = tl.zeros([HEADS * BLOCK_TOKENS], tl.float32) - float("inf")
    total = tl.zeros([HEADS * BLOCK_TOKENS], tl.float32)
    answer = tl.zeros([HEADS * BLOCK_TOKENS, DIM], tl.float32)
    # First this step's tokens of the prompt, up to the query itself, with RoPE applied on the fly. All queries see the first of
    # them, so no highest score stays −∞. A padding block has none.
    end = tl.where(count > 0, own + count, begin)
    for start in range(begin, end, FRESH):
        columns = start + tl.arange(0, FRESH)
        there = tl.minimum(columns, end - 1)
        their_keys = tl.load(k_new + there[:, None].to(tl.int64) * k_row + head * DIM + dims[None, :])
        their_values = tl.load(v_new + there[:, None].to(tl.int64) * v_row + head * DIM + dims[None, :])
        their_keys = apply_rope(their_keys, tl.load(rotations + there[:, None] * DIM + dims[None, :]), FRESH, DIM)
        scores = tl.dot(asking, tl.trans(their_keys)) * scale
        scores = tl.where(columns[None, :] <= tokens[:, None], scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        kept = tl.exp(highest - higher)
        total = total * kept + tl.sum(weights, 1)
        answer = answer * kept[:, None] + tl.dot(weights.to(their_values.dtype), their_values)
        highest = higher
    # Then the cached tokens of earlier steps, which every query sees.
    before = tl.where(count > 0, cached, 0)
    for start in range(0, before, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        offsets = first + tl.minimum(columns, before - 1)[:, None].to(tl.int64) * (KV * DIM) + dims[None, :]
        their_keys = tl.load(keys + offsets)
        their_values = tl.load(values + offsets)
        scores = tl.dot(asking, tl.trans(their_keys)) * scale
        scores = tl.where((columns < before)[None, :], scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        kept = tl.exp(highest - higher)
        total = total * kept + tl.sum(weights, 1)
        answer = answer * kept[:, None] + tl.dot(weights.to(their_values.dtype), their_values)
        highest = higher
    answer = answer / tl.where(total > 0, total, 1.0)[:, None]  # zeros for a padding block
    to = (own + queries % BLOCK_TOKENS)[:, None].to(tl.int64) * out_row + (head * GROUP + some + queries // BLOCK_TOKENS)[
        :, None
    ] * DIM
    known = (some + queries // BLOCK_TOKENS)[:, None] < GROUP
    tl.store(out + to + dims[None, :], answer.to(asking.dtype), mask=known)


@triton.jit(do_not_specialize=["rows", "of_prompts"])
def mixed_attention_kernel(
    q,
    k_new,
    v_new,
    keys,
    values,
    positions,
    blocks,
    rotations,
    out,
    scale,
    q_row,
    k_row,
    v_row,
    out_row,
    capacity,
    rows,
    of_prompts,
    KV: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    FRESH: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The first programs take prompt blocks, some of which take longest; the others one slot and key head each."""
    wait_for_previous_kernel(EARLY)
    program = tl.program_id(0)
    if program < of_prompts:
        several: tl.constexpr = (GROUP + HEADS - 1) // HEADS
        first = rows.to(tl.int64)
        attend_prompt_block(
            program // (KV * several), program // several % KV, program % several, q + first * q_row, k_new + first * k_row,
            v_new + first * v_row, keys, values, blocks, rotations + first * DIM, out + first * out_row, scale,
            q_row, k_row, v_row, out_row, capacity, KV, GROUP, DIM, BLOCK_TOKENS, HEADS, BLOCK, FRESH,
        )  # fmt: skip
    else:
        of_rows = program - of_prompts
        nothing = out  # unused: slots are not split
        attend_split(
            of_rows // KV, of_rows % KV, 0, q, k_new, v_new, keys, values, positions, rotations, out, nothing, nothing, scale,
            q_row, k_row, v_row, capacity, KV, GROUP, PADDED, DIM, ROW_BLOCK, 1,
        )  # fmt: skip
