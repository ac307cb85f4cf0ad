"""Triton kernels of ../sampling.py. Import only where triton is installed."""

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
