"""The kernels of gating.py, which says what they compute. Import them only where there is triton."""

import triton
import triton.language as tl

from tacit.engines.local.passes.early_kernel import after_those_before


@triton.jit
def halves(gate_up, row, columns, inner, stride):
    """A block of a row's gates and of what they let through; what is beyond the row is 0."""
    here = gate_up + row * stride + columns
    real = columns < inner
    return tl.load(here, mask=real, other=0.0).to(tl.float32), tl.load(here + inner, mask=real, other=0.0).to(tl.float32)


@triton.jit
def let_through(gate_up, through, inner, stride, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """A program has a block of a row."""
    after_those_before(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = columns < inner
    gate, up = halves(gate_up, row, columns, inner, stride)
    tl.store(through + row * inner + columns, (gate * tl.sigmoid(gate) * up).to(through.dtype.element_ty), mask=real)


@triton.jit
def pull_both(gate_up, pulled, both, inner, stride, BLOCK: tl.constexpr):
    """The gradient of both halves, side by side."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = columns < inner
    gate, up = halves(gate_up, row, columns, inner, stride)
    pull = tl.load(pulled + row * inner + columns, mask=real, other=0.0).to(tl.float32)
    opened = tl.sigmoid(gate)
    activated = gate * opened
    there = both + row * 2 * inner + columns
    tl.store(there, (pull * up * (opened + activated * (1.0 - opened))).to(both.dtype.element_ty), mask=real)
    tl.store(there + inner, (pull * activated).to(both.dtype.element_ty), mask=real)
