"""The kernel of drawing.py, which says what it computes. Import it only where there is triton."""

import triton
import triton.language as tl


@triton.jit
def draw_one(logits, uniforms, tokens, logprobs, temperature, vocabulary, stride, BLOCK: tl.constexpr):
    """A row is read twice: for the highest logit and the sum of all weights, then for the place where u falls."""
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * stride
    highest = tl.full([], -float("inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        block = tl.load(here + columns, mask=columns < vocabulary, other=-float("inf")).to(tl.float32) / temperature
        higher = tl.maximum(highest, tl.max(block, 0))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # nothing but −∞ so far: no NaN from −∞ − −∞
        total = total * tl.exp(highest - base) + tl.sum(tl.exp(block - base), 0)
        highest = higher
    target = tl.load(uniforms + row) * total
    passed = tl.zeros([], tl.float32)
    token = tl.full([], -1, tl.int32)
    last = tl.zeros([], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        block = tl.load(here + columns, mask=columns < vocabulary, other=-float("inf")).to(tl.float32) / temperature
        weights = tl.exp(block - highest)
        upto = passed + tl.sum(weights, 0)
        if (token < 0) & (upto > target):  # one by one they may still not add up to it: then the next block begins with it
            within = passed + tl.cumsum(weights, 0)
            first = tl.min(tl.where((within > target) & (weights > 0), columns, vocabulary), 0)
            token = tl.where(first < vocabulary, first, token)
        last = tl.maximum(last, tl.max(tl.where(weights > 0, columns, 0), 0))
        passed = upto
    # u·total may round up to all there is: then it is the last token that has any probability
    token = tl.where(token < 0, last, token)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, tl.load(here + token).to(tl.float32) / temperature - highest - tl.log(total))
