"""Triton kernels of cross_entropy.py, which has the equations. Import only where Triton is installed."""

import triton
import triton.language as tl

# Slices of a chunk start at any alignment; specializing on it would compile a dozen variants.
UNALIGNED = ["targets", "logprobs", "logsumexps", "entropies", "of_logprobs", "of_entropies"]


@triton.jit(do_not_specialize=UNALIGNED[:4])
def logprob_forward_kernel(
    logits, targets, logprobs, logsumexps, entropies, inverse, vocabulary, stride, ENTROPY: tl.constexpr, BLOCK: tl.constexpr
):
    """One program: one row. Each lane has, of every BLOCK-th logit, the maximum m, Σ exp(z − m) and Σ exp(z − m) (z − m)."""
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * stride
    lanes = tl.arange(0, BLOCK)
    # Finite stand-ins for −∞, since −∞ − −∞ is NaN. A logit of −∞ becomes −2e30 and has weight 0.
    running_max = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    spread = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        columns = start + lanes
        z = tl.load(here + columns, mask=columns < vocabulary, other=-float("inf")) * inverse
        z = tl.where(z < -2e30, -2e30, z)
        difference = z - running_max
        is_new_max = difference > 0  # false for NaN, which then stays in the sum
        weight = tl.exp(
            -tl.abs(difference)
        )  # of the new logit, or of all earlier ones relative to it: one exponential either way
        if ENTROPY:
            spread = tl.where(is_new_max, weight * (spread - total * difference), spread + weight * difference)
        total = tl.where(is_new_max, total * weight + 1.0, total + weight)
        running_max = tl.where(is_new_max, z, running_max)
    peak = tl.max(running_max, 0)
    below = running_max - peak
    weight = tl.exp(below)
    sum_of_all = tl.sum(total * weight, 0)
    log_sum = tl.log(sum_of_all)
    z = tl.load(here + tl.load(targets + row)) * inverse
    tl.store(logprobs + row, z - peak - log_sum)
    tl.store(logsumexps + row, peak + log_sum)
    if ENTROPY:
        tl.store(entropies + row, log_sum - tl.sum(weight * (spread + total * below), 0) / sum_of_all)


@triton.jit(do_not_specialize=UNALIGNED[:1] + UNALIGNED[2:])
def logprob_backward_kernel(
    logits, targets, logsumexps, entropies, of_logprobs, of_entropies, gradient, inverse, vocabulary, stride,
    ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: a block of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = columns < vocabulary
    log_p = tl.load(logits + row * stride + columns, mask=real, other=0.0) * inverse - tl.load(logsumexps + row)
    log_p = tl.where(log_p < -1e30, -1e30, log_p)  # so that 0 log 0 is 0
    p = tl.exp(log_p)
    grad_logprob = tl.load(of_logprobs + row)
    grad = tl.where(columns == tl.load(targets + row), grad_logprob, 0.0) - grad_logprob * p
    if ENTROPY:
        grad -= tl.load(of_entropies + row) * p * (log_p + tl.load(entropies + row))
    there = gradient + row * vocabulary + columns
    tl.store(there, (grad * inverse).to(gradient.dtype.element_ty), mask=real)
