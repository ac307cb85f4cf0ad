"""The kernels of gating.py, which says what they compute. Import them only where there is triton."""

from __future__ import annotations

import triton
import triton.language as tl

from tacit.engines.local.fast.decode_attention_kernels import wait_for_previous_kernel


@triton.jit
def load_gate_up(gate_up, row, columns, inner, stride):
    """A block of a row's gates and of what they let through; what is beyond the row is 0."""
    here = gate_up + row * stride + columns
    real = columns < inner
    return tl.load(here, mask=real, other=0.0).to(tl.float32), tl.load(here + inner, mask=real, other=0.0).to(tl.float32)


@triton.jit
def swiglu_forward_kernel(gate_up, through, inner, stride, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """A program has a block of a row."""
    wait_for_previous_kernel(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = columns < inner
    gate, up = load_gate_up(gate_up, row, columns, inner, stride)
    tl.store(through + row * inner + columns, (gate * tl.sigmoid(gate) * up).to(through.dtype.element_ty), mask=real)


@triton.jit
def swiglu_backward_kernel(gate_up, pulled, both, inner, stride, BLOCK: tl.constexpr):
    """The gradient of both halves, side by side."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = columns < inner
    gate, up = load_gate_up(gate_up, row, columns, inner, stride)
    pull = tl.load(pulled + row * inner + columns, mask=real, other=0.0).to(tl.float32)
    opened = tl.sigmoid(gate)
    activated = gate * opened
    there = both + row * 2 * inner + columns
    tl.store(there, (pull * up * (opened + activated * (1.0 - opened))).to(both.dtype.element_ty), mask=real)
    tl.store(there + inner, (pull * activated).to(both.dtype.element_ty), mask=real)


# The kernel of norming.py, which says what it computes. Import it only where there is triton.


@triton.jit
def rms_norm_kernel(h, weight, normed, epsilon, WIDTH: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr):
    """A program has one row."""
    wait_for_previous_kernel(EARLY)
    columns = tl.arange(0, PADDED)
    real = columns < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    wide = tl.load(h + at, mask=real, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=real, other=0.0)
    shrunk = wide * tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + epsilon)
    tl.store(normed + at, shrunk.to(gain.dtype) * gain, mask=real)


# The kernels of rotating.py, which says what they compute. Import them only where there is triton.


@triton.jit(do_not_specialize=["total"])
def rope_into_cache_kernel(
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
def rope_heads(
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
def rope_qkv_kernel(
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
    rope_heads(q, q_row, found, token, there, cos, sin, 0, HEADS, PADDED, WIDTH, HALF, True)
    rope_heads(k, k_row, found, token, there, cos, sin, HEADS, KEY_HEADS, PADDED_KEYS, WIDTH, HALF, True)
    rope_heads(v, v_row, found, token, there, cos, sin, HEADS + KEY_HEADS, KEY_HEADS, PADDED_KEYS, WIDTH, HALF, False)


# The kernels of adapted_step.py, which says what they compute. Import them only where there is triton.


@triton.jit
def lora_add_rms_norm_kernel(
    h,
    product,
    lora_B,
    weight,
    normed,
    epsilon,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program has one row: y, and after it a. All is added up in float32, and rounded once. B and the norm's weight are read
    early: before this come a matrix product and another kernel of the step, and neither changes them."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    ranks = tl.arange(0, PADDED)
    real = columns < WIDTH
    here = product + row * (WIDTH + RANK)
    # All of B at once: asked for one after the other, each of its rows would be waited for.
    known = (ranks[:, None] < RANK) & real[None, :]
    adapter = tl.load(lora_B + ranks[:, None] * WIDTH + columns[None, :], mask=known, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=real, other=0.0).to(tl.float32)
    wait_for_previous_kernel(EARLY)
    read = tl.load(here + WIDTH + ranks, mask=ranks < RANK, other=0.0).to(tl.float32)
    total = tl.load(here + columns, mask=real, other=0.0).to(tl.float32)
    total += tl.load(h + row * WIDTH + columns, mask=real, other=0.0).to(tl.float32)
    total += tl.sum(read[:, None] * adapter, 0)
    grown = total.to(h.dtype.element_ty)
    tl.store(h + row * WIDTH + columns, grown, mask=real)
    wide = grown.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + epsilon)
    tl.store(normed + row * WIDTH + columns, (wide * scale * gain).to(normed.dtype.element_ty), mask=real)


@triton.jit
def lora_swiglu_kernel(
    product,
    lora_B,
    gated,
    count,
    INNER: tl.constexpr,
    RANK: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program has a few rows and a block of features, of the gate and of what it lets through. B is read early, as above."""
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ranks = tl.arange(0, PADDED)
    real = (rows[:, None] < count) & (columns[None, :] < INNER)
    here = product + rows[:, None].to(tl.int64) * (2 * INNER + RANK)
    there = lora_B + ranks[:, None] * (2 * INNER) + columns[None, :]
    known = (ranks[:, None] < RANK) & (columns[None, :] < INNER)
    # All is on its way before anything is computed with: what a product waits for would hold up later loads.
    gate_B = tl.load(there, mask=known, other=0.0)
    up_B = tl.load(there + INNER, mask=known, other=0.0)
    wait_for_previous_kernel(EARLY)
    opened = tl.load(here + columns[None, :], mask=real, other=0.0)
    passed = tl.load(here + INNER + columns[None, :], mask=real, other=0.0)
    read = tl.load(here + 2 * INNER + ranks[None, :], mask=(rows[:, None] < count) & (ranks[None, :] < RANK), other=0.0)
    opened = tl.dot(read, gate_B) + opened.to(tl.float32)
    passed = tl.dot(read, up_B) + passed.to(tl.float32)
    through = opened * tl.sigmoid(opened) * passed
    tl.store(gated + rows[:, None].to(tl.int64) * INNER + columns[None, :], through.to(gated.dtype.element_ty), mask=real)
