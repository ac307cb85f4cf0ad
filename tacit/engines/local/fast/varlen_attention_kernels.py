"""Triton kernel of varlen_attention.py, which has the equation. Import only where Triton is installed.

Softmax weights use powers of two: `scale2` is the score scale times log₂ e. Only blocks on the diagonal (where some query does
not see some key) and at the end of a sequence are masked.
"""

import triton
import triton.language as tl


@triton.jit
def load_block(blocks, index):
    """(first token within the sequence, start and number of its queries, start and number of its keys)"""
    here = blocks + index * 5
    return tl.load(here), tl.load(here + 1), tl.load(here + 2), tl.load(here + 3), tl.load(here + 4)


@triton.jit
def token_pointers(base, start, token_stride, SIZE: tl.constexpr, DIM: tl.constexpr):
    """[SIZE, DIM] pointers to tokens from `start` on, in the head at `base`."""
    within = tl.arange(0, SIZE)[:, None] * token_stride + tl.arange(0, DIM)[None, :]
    return base + start.to(tl.int64) * token_stride + within


@triton.jit
def attend_keys(
    query, running_max, running_sum, acc, k, v, start_k, keys, seen, low, high, k_token, v_token, scale2,
    DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys `low` … `high`: updates the running maximum, the sum of weights and the output.

    The block's first query sees the keys 0 … `seen`, each further query one more."""
    for here in range(low, high, BLOCK_K):
        key_index = here + tl.arange(0, BLOCK_K)
        k_pointers = token_pointers(k, start_k + here, k_token, BLOCK_K, DIM)
        v_pointers = token_pointers(v, start_k + here, v_token, BLOCK_K, DIM)
        if DIAGONAL:
            key = tl.load(k_pointers, mask=key_index[:, None] < keys, other=0.0)
        else:
            key = tl.load(k_pointers)
        scores = tl.dot(query, tl.trans(key))
        if DIAGONAL:
            visible = key_index[None, :] <= seen + tl.arange(0, BLOCK_Q)[:, None]
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale2)
        weights = tl.exp2(scores * scale2 - new_max[:, None])
        rescale = tl.exp2(running_max - new_max)
        running_sum = running_sum * rescale + tl.sum(weights, 1)
        if DIAGONAL:
            value = tl.load(v_pointers, mask=key_index[:, None] < keys, other=0.0)
        else:
            value = tl.load(v_pointers)
        acc = tl.dot(weights.to(value.dtype), value, acc * rescale[:, None])
        running_max = new_max
    return running_max, running_sum, acc


@triton.jit
def prefix_attention_kernel(
    q, k, v, out, blocks, q_token, q_head, k_token, k_head, v_token, v_head, scale2,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: a block of queries in one head. Neighboring programs have the heads of one block, which share keys."""
    head = tl.program_id(0) % HEADS
    first, start_q, queries, start_k, keys = load_block(blocks, tl.program_id(0) // HEADS)
    rows = first + tl.arange(0, BLOCK_Q)
    real = rows < queries
    query = tl.load(token_pointers(q + head * q_head, start_q + first, q_token, BLOCK_Q, DIM), mask=real[:, None], other=0.0)
    k += (head // GROUP) * k_head
    v += (head // GROUP) * v_head

    seen = keys - queries + first
    inner = (seen + 1) // BLOCK_K * BLOCK_K  # keys in blocks that every query of this block sees
    last = tl.minimum(keys, seen + BLOCK_Q)
    running_max = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    running_sum = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, DIM], tl.float32)
    running_max, running_sum, acc = attend_keys(
        query, running_max, running_sum, acc, k, v, start_k, keys, seen, 0, inner, k_token, v_token, scale2,
        DIM, BLOCK_Q, BLOCK_K, DIAGONAL=False,
    )  # fmt: skip
    running_max, running_sum, acc = attend_keys(
        query, running_max, running_sum, acc, k, v, start_k, keys, seen, inner, last, k_token, v_token, scale2,
        DIM, BLOCK_Q, BLOCK_K, DIAGONAL=True,
    )  # fmt: skip

    output = (acc / running_sum[:, None]).to(out.dtype.element_ty)
    tl.store(token_pointers(out + head * DIM, start_q + first, HEADS * DIM, BLOCK_Q, DIM), output, mask=real[:, None])
