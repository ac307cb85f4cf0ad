"""The kernels of rotating.py, which says what they compute. Import them only where there is triton."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["total"])
def rotate_tokens(
    qkv, positions, rotations, slots, keys, values, total, row,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """A program has all heads of a few tokens: what they are rotated by is asked for once, and everything at the same time."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    here = token < total
    head = tl.arange(0, PADDED)[None, :, None]
    feature = tl.arange(0, DIM)
    within = head * DIM + feature[None, None, :]
    at = qkv + token.to(tl.int64)[:, None, None] * row + within
    there = here[:, None, None]
    old = tl.load(at, mask=there & (head < HEADS + 2 * KEY_HEADS), other=0.0)
    slot = tl.load(slots + token, mask=here, other=0).to(tl.int64)
    position = tl.load(positions + token, mask=here, other=0).to(tl.int64)
    turn = tl.load(rotations + position[:, None] * DIM + feature[None, :])
    cos, sin = tl.split(tl.reshape(turn, (TOKENS, 1, DIM // 2, 2)))
    a, b = tl.split(tl.reshape(old.to(tl.float32), (TOKENS, PADDED, DIM // 2, 2)))
    turned = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (TOKENS, PADDED, DIM)).to(old.dtype)
    rotated = head < HEADS + KEY_HEADS
    tl.store(at, turned, mask=there & rotated)
    kept = slot[:, None, None] * (KEY_HEADS * DIM) + within
    tl.store(keys + kept - HEADS * DIM, turned, mask=there & (head >= HEADS) & rotated)
    is_value = (head >= HEADS + KEY_HEADS) & (head < HEADS + 2 * KEY_HEADS)
    tl.store(values + kept - (HEADS + KEY_HEADS) * DIM, old, mask=there & is_value)


@triton.jit
def turn_heads(
    source, row, target, token, there, cos, sin,
    FIRST: tl.constexpr, COUNT: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    TURNED: tl.constexpr,
):  # fmt: skip
    """So many heads of a few tokens, to behind the first so many of all."""
    head = tl.arange(0, PADDED)[None, :, None]
    within = head * (2 * HALF) + tl.arange(0, HALF)[None, None, :]
    real = there & (head < COUNT)
    at = source + token * row + within
    a = tl.load(at, mask=real, other=0.0)
    b = tl.load(at + HALF, mask=real, other=0.0)
    to = target + token * WIDTH + FIRST * (2 * HALF) + within
    if TURNED:
        wide_a, wide_b = a.to(tl.float32), b.to(tl.float32)
        a = (wide_a * cos - wide_b * sin).to(a.dtype)
        b = (wide_b * cos + wide_a * sin).to(b.dtype)
    tl.store(to, a, mask=real)
    tl.store(to + HALF, b, mask=real)


@triton.jit(do_not_specialize=["total"])
def turn_tokens(
    q, k, v, cosines, sines, found, total, q_row, k_row, v_row,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, PADDED: tl.constexpr, PADDED_KEYS: tl.constexpr, HALF: tl.constexpr,
    TOKENS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """A program has all heads of a few tokens."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    angle = token[:, None] * HALF + tl.arange(0, HALF)[None, :]
    here = token < total
    cos = tl.load(cosines + angle, mask=here[:, None], other=0.0)[:, None, :]
    sin = tl.load(sines + angle, mask=here[:, None], other=0.0)[:, None, :]
    if BACK:
        sin = -sin
    token = token.to(tl.int64)[:, None, None]
    there = here[:, None, None]
    WIDTH: tl.constexpr = (HEADS + 2 * KEY_HEADS) * 2 * HALF
    turn_heads(q, q_row, found, token, there, cos, sin, 0, HEADS, PADDED, WIDTH, HALF, True)
    turn_heads(k, k_row, found, token, there, cos, sin, HEADS, KEY_HEADS, PADDED_KEYS, WIDTH, HALF, True)
    turn_heads(v, v_row, found, token, there, cos, sin, HEADS + KEY_HEADS, KEY_HEADS, PADDED_KEYS, WIDTH, HALF, False)
