"""The kernels of head.py, which says what they compute. Import them only where there is triton."""

import triton
import triton.language as tl

# Of a chunk of tokens these begin anywhere: compiled for how they lie in memory, a kernel would be so a dozen times.
UNALIGNED = ["targets", "logprobs", "normers", "entropies", "of_logprobs", "of_entropies"]


@triton.jit(do_not_specialize=UNALIGNED[:4])
def logprob_forward_kernel(
    logits, targets, logprobs, normers, entropies, inverse, vocabulary, stride, ENTROPY: tl.constexpr, BLOCK: tl.constexpr
):
    """A program has a row, and each lane of it every BLOCK-th logit: its highest m, Σ exp(z − m), and Σ exp(z − m) (z − m)."""
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * stride
    lanes = tl.arange(0, BLOCK)
    # Lower than any logit, and yet a number: −∞ − −∞ is none. What is −∞ lies as far below again, and weighs nothing.
    highest = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    spread = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        columns = start + lanes
        z = tl.load(here + columns, mask=columns < vocabulary, other=-float("inf")) * inverse
        z = tl.where(z < -2e30, -2e30, z)
        apart = z - highest
        rises = apart > 0  # not so of NaN, which the sum keeps
        weight = tl.exp(-tl.abs(apart))  # of what is new, or of all before against it: one exponential either way
        if ENTROPY:
            spread = tl.where(rises, weight * (spread - total * apart), spread + weight * apart)
        total = tl.where(rises, total * weight + 1.0, total + weight)
        highest = tl.where(rises, z, highest)
    peak = tl.max(highest, 0)
    below = highest - peak
    weight = tl.exp(below)
    sum_of_all = tl.sum(total * weight, 0)
    log_sum = tl.log(sum_of_all)
    z = tl.load(here + tl.load(targets + row)) * inverse
    tl.store(logprobs + row, z - peak - log_sum)
    tl.store(normers + row, peak + log_sum)
    if ENTROPY:
        tl.store(entropies + row, log_sum - tl.sum(weight * (spread + total * below), 0) / sum_of_all)


@triton.jit(do_not_specialize=UNALIGNED[:1] + UNALIGNED[2:])
def logprob_backward_kernel(
    logits,
    targets,
    normers,
    entropies,
    of_logprobs,
    of_entropies,
    gradient,
    inverse,
    vocabulary,
    stride,
    ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program has a block of a row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = columns < vocabulary
    log_p = tl.load(logits + row * stride + columns, mask=real, other=0.0) * inverse - tl.load(normers + row)
    log_p = tl.where(log_p < -1e30, -1e30, log_p)  # so that 0 log 0 is 0
    p = tl.exp(log_p)
    pulled = tl.load(of_logprobs + row)
    found = tl.where(columns == tl.load(targets + row), pulled, 0.0) - pulled * p
    if ENTROPY:
        found -= tl.load(of_entropies + row) * p * (log_p + tl.load(entropies + row))
    there = gradient + row * vocabulary + columns
    tl.store(there, (found * inverse).to(gradient.dtype.element_ty), mask=real)
