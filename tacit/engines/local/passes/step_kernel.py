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
    position = tl.load(positions + row)
    dims = tl.arange(0, DIM)
    queries = tl.arange(0, PADDED)
    real = queries[:, None] < GROUP
    at = (head * GROUP + queries[:, None]) * DIM + dims[None, :]
    pairs = tl.arange(0, DIM // 2)
    turn = rotations + position * DIM + 2 * pairs
    cos, sin = tl.load(turn), tl.load(turn + 1)
    # (a + ib)(cos + i sin) for every pair, of the queries and of the new key
    twos = (head * GROUP + queries[:, None]) * DIM + 2 * pairs[None, :]
    a = tl.load(q + row * q_row + twos, mask=real, other=0.0).to(tl.float32)
    b = tl.load(q + row * q_row + twos + 1, mask=real, other=0.0).to(tl.float32)
    turned = tl.join(a * cos[None, :] - b * sin[None, :], b * cos[None, :] + a * sin[None, :])
    asking = tl.reshape(turned, (PADDED, DIM)).to(q.dtype.element_ty)
    a = tl.load(k_new + row * k_row + head * DIM + 2 * pairs).to(tl.float32)
    b = tl.load(k_new + row * k_row + head * DIM + 2 * pairs + 1).to(tl.float32)
    key = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (DIM,)).to(k_new.dtype.element_ty)
    value = tl.load(v_new + row * v_row + head * DIM + dims)
    first = (row * capacity * KV + head) * DIM
    new = dims < tl.where(first_part, DIM, 0)
    tl.store(keys + first + position * KV * DIM + dims, key, mask=new)
    tl.store(values + first + position * KV * DIM + dims, value, mask=new)
    # The new token comes from registers: what a program stores, it does not read back.
    highest = tl.sum(asking.to(tl.float32) * key[None, :].to(tl.float32), 1) * scale
    total = tl.full([PADDED], 1.0, tl.float32)
    answer = tl.zeros([PADDED, DIM], tl.float32) + value[None, :].to(tl.float32)
    begin, end = 0, position
    if PARTS > 1:
        highest = tl.where(first_part, highest, -float("inf"))
        total = tl.where(first_part, total, 0.0)
        answer = tl.where(first_part, answer, 0.0)
        size = tl.cdiv(tl.cdiv(position, PARTS), BLOCK) * BLOCK
        begin, end = part * size, tl.minimum((part + 1) * size, position)
    for start in range(begin, end, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        seen = columns < end
        places = first + columns[:, None] * (KV * DIM) + dims[None, :]
        their_keys = tl.load(keys + places, mask=seen[:, None], other=0.0)
        their_values = tl.load(values + places, mask=seen[:, None], other=0.0)  # on its way while scores are computed
        scores = tl.dot(asking, tl.trans(their_keys)) * scale
        scores = tl.where(seen[None, :], scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        kept = tl.exp(highest - higher)
        total = total * kept + tl.sum(weights, 1)
        answer = answer * kept[:, None] + tl.dot(weights.to(their_values.dtype), their_values)
        highest = higher
    if PARTS == 1:
        answer = answer / total[:, None]
        tl.store(out + row * (KV * GROUP * DIM) + at, answer.to(asking.dtype), mask=real)
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
