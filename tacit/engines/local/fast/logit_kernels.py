"""Triton kernels of ../sampling.py and cross_entropy.py. Import only where triton is installed."""

import triton
import triton.language as tl

from tacit.engines.local.fast.decode_attention_kernels import wait_for_previous_kernel


@triton.jit
def sum_part_kernel(
    logits, parts, temperature, vocabulary, stride, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    """One program per part of a row: its highest logit, and the sum of exp(logit − highest)."""
    wait_for_previous_kernel(EARLY)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    block = (
        tl.load(logits + row * stride + columns, mask=columns < vocabulary, other=-float("inf")).to(tl.float32) / temperature
    )
    highest = tl.max(block, 0)
    base = tl.where(highest == -float("inf"), 0.0, highest)  # all −∞: avoid NaN from −∞ − −∞
    mine = parts + 2 * (row * PARTS + part)
    tl.store(mine, highest)
    tl.store(mine + 1, tl.sum(tl.exp(block - base), 0))


@triton.jit(do_not_specialize=["max_position"])
def sample_kernel(
    logits, parts, noise, tokens, logprobs, sampled, last_tokens, positions, max_position, temperature, vocabulary,
    stride,
    STEPS: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program per row: find the part in which u falls, then the token in it. With `sampled`, the number of this token among
    STEPS, also advance the row's state."""
    wait_for_previous_kernel(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = row * STEPS
    if sampled is not None:
        before, position = tl.load(sampled + row), tl.load(positions + row)
        at += before
    uniform = tl.load(noise + at)
    numbers = tl.arange(0, PADDED)
    theirs = parts + 2 * (row * PARTS + numbers)
    peaks = tl.load(theirs, mask=numbers < PARTS, other=-float("inf"))
    sums = tl.load(theirs + 1, mask=numbers < PARTS, other=0.0)
    highest = tl.max(peaks, 0)
    weights = sums * tl.exp(peaks - highest)
    total = tl.sum(weights, 0)
    target = uniform * total
    upto = tl.cumsum(weights, 0)
    # u·total may round up to the total: then take the last part, and in it the last token, of nonzero probability
    last = tl.max(tl.where(weights > 0, numbers, 0), 0)
    part = tl.min(tl.where((upto > target) & (weights > 0), numbers, last), 0)
    passed = tl.sum(tl.where(numbers < part, weights, 0.0), 0)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    here = logits + row * stride
    block = tl.load(here + columns, mask=columns < vocabulary, other=-float("inf")).to(tl.float32) / temperature
    weights = tl.exp(block - highest)
    within = passed + tl.cumsum(weights, 0)
    last = tl.max(tl.where(weights > 0, columns, part * BLOCK), 0)
    token = tl.min(tl.where((within > target) & (weights > 0), columns, last), 0)
    tl.store(tokens + at, token.to(tl.int64))
    tl.store(logprobs + at, tl.load(here + token).to(tl.float32) / temperature - highest - tl.log(total))
    if sampled is not None:
        tl.store(sampled + row, before + 1)
        tl.store(last_tokens + row, token.to(tl.int64))
        tl.store(positions + row, tl.minimum(position + 1, max_position))


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
