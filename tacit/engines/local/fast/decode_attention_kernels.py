"""Kernels that are launched before the one before them has ended; `kernels.early` says where. For triton only."""

from __future__ import annotations

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older triton, in which nothing is launched early
    gdc_launch_dependents = gdc_wait = None


@triton.jit
def after_those_before(EARLY: tl.constexpr):
    """Wait until all that was launched before is over and can be read; and let the next kernel come, to wait in its turn.
    Every program of a kernel that may be early has to do so, since who waits for it takes it that it has waited. Before it
    does, it may write nothing, and read only what neither of the two kernels before it writes: libraries' products may be early
    themselves."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


# The kernels of step_attention.py, chunk_attention.py and mixed_attention.py, which say what they compute. Import them only
# where there is triton.


@triton.jit
def attend_one(
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
    PARTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program has one part of a row's columns."""
    after_those_before(EARLY)
    part_of_a_row(
        tl.program_id(0), tl.program_id(1), tl.program_id(2), q, k_new, v_new, keys, values, positions, rotations, out,
        partial, peaks, scale, q_row, k_row, v_row, capacity, KV, GROUP, PADDED, DIM, BLOCK, PARTS,
    )  # fmt: skip


@triton.jit
def part_of_a_row(
    row,
    head,
    part,
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
    PARTS: tl.constexpr,
):
    """The first part also has the new token."""
    row = row.to(tl.int64)
    first_part = part == 0
    dims = tl.arange(0, DIM)
    queries = tl.arange(0, PADDED)
    # All that comes before the cached keys is asked for at once: one wait, not one after the other. The new key and value and
    # the rotation are there once for every query, in registers beside it. Padding repeats the last query, or the last column.
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
    new = queries[:, None] < tl.where(first_part, 1, 0)
    tl.store(keys + first + position * (KV * DIM) + same, key, mask=new)
    tl.store(values + first + position * (KV * DIM) + same, value, mask=new)
    # The new token comes from registers: what a program stores, it does not read back.
    highest = tl.sum(asking.to(tl.float32) * key.to(tl.float32), 1) * scale
    # The weights are summed by their places in a block, and these sums at the end: within the loop nobody waits for them.
    blocks = tl.arange(0, BLOCK)
    totals = tl.zeros([PADDED, BLOCK], tl.float32) + tl.where(blocks == 0, 1.0, 0.0)[None, :]
    answer = value.to(tl.float32)
    position = position.to(tl.int32)
    begin, end = 0, position
    if PARTS > 1:
        highest = tl.where(first_part, highest, -float("inf"))
        totals = tl.where(first_part, totals, 0.0)
        answer = tl.where(first_part, answer, 0.0)
        size = tl.cdiv(tl.cdiv(position, PARTS), BLOCK) * BLOCK
        begin, end = part * size, tl.minimum((part + 1) * size, position)
    for start in range(begin, end, BLOCK):
        columns = start + blocks
        places = first + tl.minimum(columns, end - 1)[:, None] * (KV * DIM) + dims[None, :]
        their_keys = tl.load(keys + places)
        their_values = tl.load(values + places)  # on its way while scores are computed
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
    if PARTS == 1:
        answer = answer / total[:, None]
        tl.store(out + row * (KV * GROUP * DIM) + head * GROUP * DIM + own, answer.to(asking.dtype), mask=real)
    else:
        mine = ((row * KV + head) * PARTS + part) * PADDED + queries
        tl.store(partial + mine[:, None] * DIM + dims[None, :], answer, mask=real)
        tl.store(peaks + 2 * mine, highest)
        tl.store(peaks + 2 * mine + 1, total)


@triton.jit
def join_parts(
    partial,
    peaks,
    out,
    KV: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    PARTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program has one row and one query head, and what the parts found of it."""
    after_those_before(EARLY)
    row = tl.program_id(0).to(tl.int64)
    asked = tl.program_id(1)
    dims = tl.arange(0, DIM)
    parts = tl.arange(0, PARTS)
    theirs = ((row * KV + asked // GROUP) * PARTS + parts) * PADDED + asked % GROUP
    highest, total = tl.load(peaks + 2 * theirs), tl.load(peaks + 2 * theirs + 1)
    weight = tl.exp(highest - tl.max(highest, 0))  # a part without columns has −∞, and counts for nothing
    found = tl.sum(tl.load(partial + theirs[:, None] * DIM + dims[None, :]) * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + (row * KV * GROUP + asked) * DIM + dims, found.to(out.dtype.element_ty))


@triton.jit
def turned(x, turn, ROWS: tl.constexpr, DIM: tl.constexpr):
    """(a + ib)(cos + i sin) for every pair of a row, in float32 and rounded once."""
    cos, sin = tl.split(tl.reshape(turn, (ROWS, DIM // 2, 2)))
    a, b = tl.split(tl.reshape(x.to(tl.float32), (ROWS, DIM // 2, 2)))
    return tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (ROWS, DIM)).to(x.dtype)


@triton.jit
def attend_chunk(
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
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    FRESH: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program has a block of prompt tokens and some of the query heads that share a key head."""
    after_those_before(EARLY)
    block_of_a_prompt(
        tl.program_id(0), tl.program_id(1), tl.program_id(2), q, k_new, v_new, keys, values, blocks, rotations, out, scale,
        q_row, k_row, v_row, out_row, capacity, KV, GROUP, DIM, TOKENS, HEADS, BLOCK, FRESH,
    )  # fmt: skip


@triton.jit
def block_of_a_prompt(
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
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    FRESH: tl.constexpr,
):
    """HEADS · TOKENS queries."""
    some = some * HEADS
    described = blocks + block * 4
    place = tl.load(described)
    cached = tl.load(described + 1).to(tl.int32)
    begin = tl.load(described + 2).to(tl.int32)
    count = tl.load(described + 3).to(tl.int32)
    own = block * TOKENS
    dims = tl.arange(0, DIM)
    queries = tl.arange(0, HEADS * TOKENS)
    # What fills a block up repeats its last token, and what fills the heads up the last head: numbers like any others.
    last = tl.maximum(count - 1, 0)
    tokens = own + tl.minimum(queries % TOKENS, last)
    asked = tl.minimum(some + queries // TOKENS, GROUP - 1)
    turn = tl.load(rotations + tokens[:, None] * DIM + dims[None, :])
    asking = tl.load(q + tokens[:, None].to(tl.int64) * q_row + (head * GROUP + asked)[:, None] * DIM + dims[None, :])
    asking = turned(asking, turn, HEADS * TOKENS, DIM)
    first = (place * capacity * KV + head) * DIM
    # The block's own keys and values go into the cache, where nobody reads them before the next step.
    fresh = tl.arange(0, TOKENS)
    here = own + tl.minimum(fresh, last)
    to = first + (cached + own - begin + fresh)[:, None].to(tl.int64) * (KV * DIM) + dims[None, :]
    real = (fresh[:, None] < count) & (dims[None, :] < tl.where(some == 0, DIM, 0))
    key = tl.load(k_new + here[:, None].to(tl.int64) * k_row + head * DIM + dims[None, :])
    value = tl.load(v_new + here[:, None].to(tl.int64) * v_row + head * DIM + dims[None, :])
    key = turned(key, tl.load(rotations + here[:, None] * DIM + dims[None, :]), TOKENS, DIM)
    tl.store(keys + to, key, mask=real)
    tl.store(values + to, value, mask=real)
    highest = tl.zeros([HEADS * TOKENS], tl.float32) - float("inf")
    total = tl.zeros([HEADS * TOKENS], tl.float32)
    answer = tl.zeros([HEADS * TOKENS, DIM], tl.float32)
    # First the prompt's tokens of this step, rotated on the way, from its first one here to the query itself. The first of
    # them is seen by all queries: from then on nobody's highest score is −∞. A block of nobody has none.
    end = tl.where(count > 0, own + count, begin)
    for start in range(begin, end, FRESH):
        columns = start + tl.arange(0, FRESH)
        there = tl.minimum(columns, end - 1)
        their_keys = tl.load(k_new + there[:, None].to(tl.int64) * k_row + head * DIM + dims[None, :])
        their_values = tl.load(v_new + there[:, None].to(tl.int64) * v_row + head * DIM + dims[None, :])
        their_keys = turned(their_keys, tl.load(rotations + there[:, None] * DIM + dims[None, :]), FRESH, DIM)
        scores = tl.dot(asking, tl.trans(their_keys)) * scale
        scores = tl.where(columns[None, :] <= tokens[:, None], scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        kept = tl.exp(highest - higher)
        total = total * kept + tl.sum(weights, 1)
        answer = answer * kept[:, None] + tl.dot(weights.to(their_values.dtype), their_values)
        highest = higher
    # Then what earlier steps have left in the cache, which every query sees.
    before = tl.where(count > 0, cached, 0)
    for start in range(0, before, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        places = first + tl.minimum(columns, before - 1)[:, None].to(tl.int64) * (KV * DIM) + dims[None, :]
        their_keys = tl.load(keys + places)
        their_values = tl.load(values + places)
        scores = tl.dot(asking, tl.trans(their_keys)) * scale
        scores = tl.where((columns < before)[None, :], scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        kept = tl.exp(highest - higher)
        total = total * kept + tl.sum(weights, 1)
        answer = answer * kept[:, None] + tl.dot(weights.to(their_values.dtype), their_values)
        highest = higher
    answer = answer / tl.where(total > 0, total, 1.0)[:, None]  # zeros where a block is of nobody
    to = (own + queries % TOKENS)[:, None].to(tl.int64) * out_row + (head * GROUP + some + queries // TOKENS)[:, None] * DIM
    known = (some + queries // TOKENS)[:, None] < GROUP
    tl.store(out + to + dims[None, :], answer.to(asking.dtype), mask=known)


@triton.jit(do_not_specialize=["rows", "of_prompts"])
def attend_both(
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
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    FRESH: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The first programs have blocks of prompts, of which some take longest, and those after them a row and a key head each."""
    after_those_before(EARLY)
    program = tl.program_id(0)
    if program < of_prompts:
        several: tl.constexpr = (GROUP + HEADS - 1) // HEADS
        first = rows.to(tl.int64)
        block_of_a_prompt(
            program // (KV * several), program // several % KV, program % several, q + first * q_row, k_new + first * k_row,
            v_new + first * v_row, keys, values, blocks, rotations + first * DIM, out + first * out_row, scale,
            q_row, k_row, v_row, out_row, capacity, KV, GROUP, DIM, TOKENS, HEADS, BLOCK, FRESH,
        )  # fmt: skip
    else:
        of_rows = program - of_prompts
        nothing = out  # of a row in one part, nothing is to be joined
        part_of_a_row(
            of_rows // KV, of_rows % KV, 0, q, k_new, v_new, keys, values, positions, rotations, out, nothing, nothing, scale,
            q_row, k_row, v_row, capacity, KV, GROUP, PADDED, DIM, ROW_BLOCK, 1,
        )  # fmt: skip
