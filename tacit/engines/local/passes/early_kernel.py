"""Kernels that are launched before the one before them has ended; `kernels.early` says where. For triton only."""

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older triton, in which nothing is launched early
    gdc_launch_dependents = gdc_wait = None


@triton.jit
def after_those_before(EARLY: tl.constexpr):
    """Wait until all that was launched before is over and can be read; and let the next kernel come, to wait in its turn.
    Every program of a kernel that may be early has to do so, since who waits for it takes it that it has waited. Before it
    does, it may write nothing, and read only what neither of the two kernels before it writes: libraries' products may be early
    themselves."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
