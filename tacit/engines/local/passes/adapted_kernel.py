"""The kernels of adapted_step.py, which says what they compute. Import them only where there is triton."""

import triton
import triton.language as tl

from tacit.engines.local.passes.early_kernel import after_those_before


@triton.jit
def add_and_norm(
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
    after_those_before(EARLY)
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
def gate(
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
    after_those_before(EARLY)
    opened = tl.load(here + columns[None, :], mask=real, other=0.0)
    passed = tl.load(here + INNER + columns[None, :], mask=real, other=0.0)
    read = tl.load(here + 2 * INNER + ranks[None, :], mask=(rows[:, None] < count) & (ranks[None, :] < RANK), other=0.0)
    opened = tl.dot(read, gate_B) + opened.to(tl.float32)
    passed = tl.dot(read, up_B) + passed.to(tl.float32)
    through = opened * tl.sigmoid(opened) * passed
    tl.store(gated + rows[:, None].to(tl.int64) * INNER + columns[None, :], through.to(gated.dtype.element_ty), mask=real)
