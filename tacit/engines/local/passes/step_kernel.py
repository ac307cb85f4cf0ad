"""The kernel of step_attention.py, which says what it computes. Import it only where there is triton."""

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
    out,
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
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    position = tl.load(positions + row)
    dims = tl.arange(0, DIM)
    queries = tl.arange(0, PADDED)
    real = queries[:, None] < GROUP
    at = (head * GROUP + queries[:, None]) * DIM + dims[None, :]
    asking = tl.load(q + row * q_row + at, mask=real, other=0.0)
    key = tl.load(k_new + row * k_row + head * DIM + dims)
    value = tl.load(v_new + row * v_row + head * DIM + dims)
    first = (row * capacity * KV + head) * DIM
    tl.store(keys + first + position * KV * DIM + dims, key)
    tl.store(values + first + position * KV * DIM + dims, value)
    # The new token comes from registers: what a program stores, it does not read back.
    highest = tl.sum(asking.to(tl.float32) * key[None, :].to(tl.float32), 1) * scale
    total = tl.full([PADDED], 1.0, tl.float32)
    answer = tl.zeros([PADDED, DIM], tl.float32) + value[None, :].to(tl.float32)
    for start in range(0, position, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        seen = columns < position
        places = first + columns[:, None] * (KV * DIM) + dims[None, :]
        block = tl.load(keys + places, mask=seen[:, None], other=0.0)
        scores = tl.dot(asking, tl.trans(block)) * scale
        scores = tl.where(seen[None, :], scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        kept = tl.exp(highest - higher)
        total = total * kept + tl.sum(weights, 1)
        block = tl.load(values + places, mask=seen[:, None], other=0.0)
        answer = answer * kept[:, None] + tl.dot(weights.to(block.dtype), block)
        highest = higher
    answer = answer / total[:, None]
    tl.store(out + row * (KV * GROUP * DIM) + at, answer.to(asking.dtype), mask=real)
