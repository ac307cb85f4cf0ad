"""The kernel of norming.py, which says what it computes. Import it only where there is triton."""

import triton
import triton.language as tl

from tacit.engines.local.passes.early_kernel import after_those_before


@triton.jit
def norm_row(h, weight, normed, epsilon, WIDTH: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr):
    """A program has one row."""
    after_those_before(EARLY)
    columns = tl.arange(0, PADDED)
    real = columns < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    wide = tl.load(h + at, mask=real, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=real, other=0.0)
    shrunk = wide * tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + epsilon)
    tl.store(normed + at, shrunk.to(gain.dtype) * gain, mask=real)
