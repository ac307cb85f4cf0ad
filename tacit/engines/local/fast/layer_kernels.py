"""Triton kernels of layers.py and lora_step.py, which have the equations. Import only where Triton is installed."""

from __future__ import annotations

import triton
import triton.language as tl

from tacit.engines.local.fast.attention_kernels import wait_for_previous_kernel


@triton.jit
def load_gate_up(gate_up, row, columns, inner, stride):
    """A block of gate and up values of one row, in float32; 0 beyond the row."""
    here = gate_up + row * stride + columns
    real = columns < inner
    return tl.load(here, mask=real, other=0.0).to(tl.float32), tl.load(here + inner, mask=real, other=0.0).to(tl.float32)


@triton.jit
def swiglu_forward_kernel(gate_up, output, inner, stride, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """One program: a block of one row."""
    wait_for_previous_kernel(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = columns < inner
    gate, up = load_gate_up(gate_up, row, columns, inner, stride)
    tl.store(output + row * inner + columns, (gate * tl.sigmoid(gate) * up).to(output.dtype.element_ty), mask=real)


@triton.jit
def swiglu_backward_kernel(gate_up, grad_out, grad_gate_up, inner, stride, BLOCK: tl.constexpr):
    """One program: the gradients of gate and up, side by side, of a block of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = columns < inner
    gate, up = load_gate_up(gate_up, row, columns, inner, stride)
    grad = tl.load(grad_out + row * inner + columns, mask=real, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    activated = gate * sigmoid
    there = grad_gate_up + row * 2 * inner + columns
    tl.store(there, (grad * up * (sigmoid + activated * (1.0 - sigmoid))).to(grad_gate_up.dtype.element_ty), mask=real)
    tl.store(there + inner, (grad * activated).to(grad_gate_up.dtype.element_ty), mask=real)


@triton.jit
def rms_norm_kernel(h, weight, normed, epsilon, WIDTH: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr):
    """One program: one row."""
    wait_for_previous_kernel(EARLY)
    columns = tl.arange(0, PADDED)
    real = columns < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    wide = tl.load(h + at, mask=real, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=real, other=0.0)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + epsilon)
    tl.store(normed + at, scaled.to(gain.dtype) * gain, mask=real)


@triton.jit(do_not_specialize=["total"])
def rope_into_cache_kernel(
    qkv, positions, rotations, slots, keys, values, total, row,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """One program: all heads of a few tokens, so cos and sin are loaded once."""
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
    cos_sin = tl.load(rotations + position[:, None] * DIM + feature[None, :])
    cos, sin = tl.split(tl.reshape(cos_sin, (TOKENS, 1, DIM // 2, 2)))
    a, b = tl.split(tl.reshape(old.to(tl.float32), (TOKENS, PADDED, DIM // 2, 2)))
    rotated = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (TOKENS, PADDED, DIM)).to(old.dtype)
    is_rotated = head < HEADS + KEY_HEADS
    tl.store(at, rotated, mask=there & is_rotated)
    kept = slot[:, None, None] * (KEY_HEADS * DIM) + within
    tl.store(keys + kept - HEADS * DIM, rotated, mask=there & (head >= HEADS) & is_rotated)
    is_value = (head >= HEADS + KEY_HEADS) & (head < HEADS + 2 * KEY_HEADS)
    tl.store(values + kept - (HEADS + KEY_HEADS) * DIM, old, mask=there & is_value)


@triton.jit
def rope_heads(
    source, row, target, token, there, cos, sin,
    FIRST: tl.constexpr, COUNT: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    ROTATE: tl.constexpr,
):  # fmt: skip
    """Store COUNT heads of a few tokens after the first FIRST heads of the output, with RoPE if ROTATE."""
    head = tl.arange(0, PADDED)[None, :, None]
    within = head * (2 * HALF) + tl.arange(0, HALF)[None, None, :]
    real = there & (head < COUNT)
    at = source + token * row + within
    a = tl.load(at, mask=real, other=0.0)
    b = tl.load(at + HALF, mask=real, other=0.0)
    to = target + token * WIDTH + FIRST * (2 * HALF) + within
    if ROTATE:
        wide_a, wide_b = a.to(tl.float32), b.to(tl.float32)
        a = (wide_a * cos - wide_b * sin).to(a.dtype)
        b = (wide_b * cos + wide_a * sin).to(b.dtype)
    tl.store(to, a, mask=real)
    tl.store(to + HALF, b, mask=real)


@triton.jit(do_not_specialize=["total"])
def rope_qkv_kernel(
    q, k, v, cosines, sines, rotated, total, q_row, k_row, v_row,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, PADDED: tl.constexpr, PADDED_KEYS: tl.constexpr, HALF: tl.constexpr,
    TOKENS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """One program: all heads of a few tokens. BACK rotates back, for the gradient."""
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
    rope_heads(q, q_row, rotated, token, there, cos, sin, 0, HEADS, PADDED, WIDTH, HALF, True)
    rope_heads(k, k_row, rotated, token, there, cos, sin, HEADS, KEY_HEADS, PADDED_KEYS, WIDTH, HALF, True)
    rope_heads(v, v_row, rotated, token, there, cos, sin, HEADS + KEY_HEADS, KEY_HEADS, PADDED_KEYS, WIDTH, HALF, False)


@triton.jit
def lora_add_rms_norm_kernel(
    h, product, lora_B, weight, normed, epsilon,
    WIDTH: tl.constexpr, RANK: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program: one row. h += product + LoRA term, then RMSNorm; summed in float32 and rounded once. B and the norm's weight
    are loaded before waiting for the previous kernel, which does not change them."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    ranks = tl.arange(0, PADDED)
    real = columns < WIDTH
    here = product + row * (WIDTH + RANK)
    # Load all of B at once: row by row, each load would wait for the previous one.
    in_range = (ranks[:, None] < RANK) & real[None, :]
    adapter = tl.load(lora_B + ranks[:, None] * WIDTH + columns[None, :], mask=in_range, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=real, other=0.0).to(tl.float32)
    wait_for_previous_kernel(EARLY)
    lora_a = tl.load(here + WIDTH + ranks, mask=ranks < RANK, other=0.0).to(tl.float32)
    total = tl.load(here + columns, mask=real, other=0.0).to(tl.float32)
    total += tl.load(h + row * WIDTH + columns, mask=real, other=0.0).to(tl.float32)
    total += tl.sum(lora_a[:, None] * adapter, 0)
    new_h = total.to(h.dtype.element_ty)
    tl.store(h + row * WIDTH + columns, new_h, mask=real)
    wide = new_h.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + epsilon)
    tl.store(normed + row * WIDTH + columns, (wide * scale * gain).to(normed.dtype.element_ty), mask=real)


@triton.jit
def lora_swiglu_kernel(
    product, lora_B, out, count,
    INNER: tl.constexpr, RANK: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program: SwiGLU with LoRA of a few rows and a block of features. B is loaded early, as above."""
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ranks = tl.arange(0, PADDED)
    real = (rows[:, None] < count) & (columns[None, :] < INNER)
    here = product + rows[:, None].to(tl.int64) * (2 * INNER + RANK)
    there = lora_B + ranks[:, None] * (2 * INNER) + columns[None, :]
    in_range = (ranks[:, None] < RANK) & (columns[None, :] < INNER)
    # Issue all loads before any product: a waiting product would delay later loads.
    gate_B = tl.load(there, mask=in_range, other=0.0)
    up_B = tl.load(there + INNER, mask=in_range, other=0.0)
    wait_for_previous_kernel(EARLY)
    gate = tl.load(here + columns[None, :], mask=real, other=0.0)
    up = tl.load(here + INNER + columns[None, :], mask=real, other=0.0)
    lora_a = tl.load(here + 2 * INNER + ranks[None, :], mask=(rows[:, None] < count) & (ranks[None, :] < RANK), other=0.0)
    gate = tl.dot(lora_a, gate_B) + gate.to(tl.float32)
    up = tl.dot(lora_a, up_B) + up.to(tl.float32)
    output = gate * tl.sigmoid(gate) * up
    tl.store(out + rows[:, None].to(tl.int64) * INNER + columns[None, :], output.to(out.dtype.element_ty), mask=real)
