"""The kernels of drawing.py, which says what they compute. Import them only where there is triton."""

import triton
import triton.language as tl

from tacit.engines.local.fast.decode_attention_kernels import after_those_before


@triton.jit
def weigh_part(logits, parts, temperature, vocabulary, stride, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """A program has a part of a row: its highest logit, and the sum of all weights against that."""
    after_those_before(EARLY)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    block = (
        tl.load(logits + row * stride + columns, mask=columns < vocabulary, other=-float("inf")).to(tl.float32) / temperature
    )
    highest = tl.max(block, 0)
    base = tl.where(highest == -float("inf"), 0.0, highest)  # nothing but −∞ here: no NaN from −∞ − −∞
    mine = parts + 2 * (row * PARTS + part)
    tl.store(mine, highest)
    tl.store(mine + 1, tl.sum(tl.exp(block - base), 0))


@triton.jit(do_not_specialize=["furthest"])
def draw_one(
    logits,
    parts,
    noise,
    tokens,
    logprobs,
    drawn,
    last_tokens,
    positions,
    furthest,
    temperature,
    vocabulary,
    stride,
    STEPS: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program has a row: first the part in which u falls, then the token within it. Where `drawn` says which of its STEPS
    tokens this one is, the row goes on with it."""
    after_those_before(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = row * STEPS
    if drawn is not None:
        before, position = tl.load(drawn + row), tl.load(positions + row)
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
    # u·total may round up to all there is: then it is the last part, and in it the last token, that has any probability
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
    if drawn is not None:
        tl.store(drawn + row, before + 1)
        tl.store(last_tokens + row, token.to(tl.int64))
        tl.store(positions + row, tl.minimum(position + 1, furthest))
