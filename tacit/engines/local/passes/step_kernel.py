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
    rotations,
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
    answer = answer / total[:, None]
    tl.store(out + row * (KV * GROUP * DIM) + at, answer.to(asking.dtype), mask=real)
