"""The kernels of step_attention.py, which says what they compute. Import them only where there is triton."""

import triton
import triton.language as tl


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
):
    """A program has one part of a row's columns; the first also has the new token."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    part = tl.program_id(2)
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
    partial, peaks, out, KV: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, PARTS: tl.constexpr
):
    """A program has one row and one query head, and what the parts found of it."""
    row = tl.program_id(0).to(tl.int64)
    asked = tl.program_id(1)
    dims = tl.arange(0, DIM)
    parts = tl.arange(0, PARTS)
    theirs = ((row * KV + asked // GROUP) * PARTS + parts) * PADDED + asked % GROUP
    highest, total = tl.load(peaks + 2 * theirs), tl.load(peaks + 2 * theirs + 1)
    weight = tl.exp(highest - tl.max(highest, 0))  # a part without columns has −∞, and counts for nothing
    found = tl.sum(tl.load(partial + theirs[:, None] * DIM + dims[None, :]) * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + (row * KV * GROUP + asked) * DIM + dims, found.to(out.dtype.element_ty))
