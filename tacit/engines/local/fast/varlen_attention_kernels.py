"""Triton kernels of varlen_attention.py, which has the equations. Import only where Triton is installed.

Softmax weights use powers of two: `scale2` is the score scale times log₂ e. Only blocks on the diagonal (where some query does
not see some key) and at the end of a sequence are masked. The total number of queries differs in every pass: not specialized.
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

    The block's first query visible the keys 0 … `seen`, each further query one more."""
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


@triton.jit(do_not_specialize=["total"])
def varlen_forward_kernel(
    q, k, v, out, logsumexp, blocks, total, q_token, q_head, k_token, k_head, v_token, v_head, scale2,
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
    inner = (seen + 1) // BLOCK_K * BLOCK_K  # keys in blocks that every query of this block visible
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
    tl.store(logsumexp + head.to(tl.int64) * total + start_q + rows, running_max + tl.log2(running_sum), mask=real)


@triton.jit
def accumulate_dq(
    query, d_out, lse, delta, acc, k, v, start_k, keys, seen, low, high, k_token, v_token, scale2,
    DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Adds the keys `low` … `high` to the d_out_ptr of a block of queries."""
    for here in range(low, high, BLOCK_K):
        key_index = here + tl.arange(0, BLOCK_K)
        k_pointers = token_pointers(k, start_k + here, k_token, BLOCK_K, DIM)
        v_pointers = token_pointers(v, start_k + here, v_token, BLOCK_K, DIM)
        if DIAGONAL:
            key = tl.load(k_pointers, mask=key_index[:, None] < keys, other=0.0)
            value = tl.load(v_pointers, mask=key_index[:, None] < keys, other=0.0)
        else:
            key = tl.load(k_pointers)
            value = tl.load(v_pointers)
        scores = tl.dot(query, tl.trans(key))
        if DIAGONAL:
            visible = key_index[None, :] <= seen + tl.arange(0, BLOCK_Q)[:, None]
            scores = tl.where(visible, scores, float("-inf"))
        weights = tl.exp2(scores * scale2 - lse[:, None])
        ds = weights * (tl.dot(d_out, tl.trans(value)) - delta[:, None])
        acc = tl.dot(ds.to(key.dtype), key, acc)
    return acc


@triton.jit(do_not_specialize=["total"])
def varlen_backward_q_kernel(
    q, k, v, out, d_out_ptr, logsumexp, deltas, dq, blocks, total,
    q_token, q_head, k_token, k_head, v_token, v_head, scale, scale2,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: dq of a block of queries in one head, and δ, which the kernel for dk and dv needs."""
    head = tl.program_id(0) % HEADS
    first, start_q, queries, start_k, keys = load_block(blocks, tl.program_id(0) // HEADS)
    rows = first + tl.arange(0, BLOCK_Q)
    real = rows < queries
    query = tl.load(token_pointers(q + head * q_head, start_q + first, q_token, BLOCK_Q, DIM), mask=real[:, None], other=0.0)
    own = token_pointers(head * DIM, start_q + first, HEADS * DIM, BLOCK_Q, DIM)
    d_out = tl.load(d_out_ptr + own, mask=real[:, None], other=0.0)
    output = tl.load(out + own, mask=real[:, None], other=0.0)
    delta = tl.sum(output.to(tl.float32) * d_out.to(tl.float32), 1)
    flat = head.to(tl.int64) * total + start_q + rows
    tl.store(deltas + flat, delta, mask=real)
    lse = tl.load(logsumexp + flat, mask=real, other=float("inf"))
    k += (head // GROUP) * k_head
    v += (head // GROUP) * v_head

    seen = keys - queries + first
    inner = (seen + 1) // BLOCK_K * BLOCK_K
    last = tl.minimum(keys, seen + BLOCK_Q)
    acc = tl.zeros([BLOCK_Q, DIM], tl.float32)
    acc = accumulate_dq(
        query, d_out, lse, delta, acc, k, v, start_k, keys, seen, 0, inner, k_token, v_token, scale2,
        DIM, BLOCK_Q, BLOCK_K, DIAGONAL=False,
    )  # fmt: skip
    acc = accumulate_dq(
        query, d_out, lse, delta, acc, k, v, start_k, keys, seen, inner, last, k_token, v_token, scale2,
        DIM, BLOCK_Q, BLOCK_K, DIAGONAL=True,
    )  # fmt: skip
    tl.store(dq + own, (acc * scale).to(dq.dtype.element_ty), mask=real[:, None])


@triton.jit
def accumulate_dk_dv(
    key, value, dk_acc, dv_acc, q, d_out_ptr, logsumexp, deltas, total, start_q, queries, unseen,
    low, inner, tail, count, head, q_token, q_head, scale2,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """Adds `count` query blocks, in each head of the group from `head` on, to dk and dv of a block of keys. One loop over all
    heads, because loads are not prefetched across loops.

    EDGE covers the masked blocks: those from `low` to `inner` (diagonal) and the rest from `tail` on (end of the sequence). The
    block's first key is visible to the queries from `unseen` on (to all, if negative), each further key to one query less. A
    query beyond the sequence has weight 0, because its logsumexp loads as ∞."""
    within = tl.arange(0, BLOCK_Q)
    # Prefetched loads compute their addresses before the loop condition: a division by `count` would let the compiler assume
    # that it is not zero.
    per_head = tl.maximum(count, 1)
    for step in range(count * GROUP):
        q_head_index = head + step // per_head
        if EDGE:
            here = low + step % per_head * BLOCK_Q
            here = tl.where(here < inner, here, tail)
        else:
            here = inner + step % per_head * BLOCK_Q
        q_pointers = token_pointers(q + q_head_index * q_head, start_q + here, q_token, BLOCK_Q, DIM)
        d_out_pointers = token_pointers(d_out_ptr + q_head_index * DIM, start_q + here, HEADS * DIM, BLOCK_Q, DIM)
        flat = (
            q_head_index.to(tl.int64) * total + start_q + here
        )  # one scalar offset: pointers that differ by a constant share registers
        if EDGE:
            real = within < queries - here
            query = tl.load(q_pointers, mask=real[:, None], other=0.0)
            lse = tl.load(logsumexp + flat + within, mask=real, other=float("inf"))
        else:
            query = tl.load(q_pointers)
            lse = tl.load(logsumexp + flat + within)
        scores = tl.dot(key, tl.trans(query))
        if EDGE:
            visible = unseen - here + tl.arange(0, BLOCK_K)[:, None] <= within[None, :]
            scores = tl.where(visible, scores, float("-inf"))
        weights = tl.exp2(scores * scale2 - lse[None, :])
        if EDGE:
            d_out = tl.load(d_out_pointers, mask=real[:, None], other=0.0)
            delta = tl.load(deltas + flat + within, mask=real, other=0.0)
        else:
            d_out = tl.load(d_out_pointers)
            delta = tl.load(deltas + flat + within)
        dv_acc = tl.dot(weights.to(d_out.dtype), d_out, dv_acc)
        ds = weights * (tl.dot(value, tl.trans(d_out)) - delta[None, :])
        dk_acc = tl.dot(ds.to(query.dtype), query, dk_acc)
    return dk_acc, dv_acc


@triton.jit(do_not_specialize=["total"])
def varlen_backward_kv_kernel(
    q, k, v, d_out_ptr, logsumexp, deltas, dk, dv, blocks, total,
    q_token, q_head, k_token, k_head, v_token, v_head, scale, scale2,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: dk and dv of a block of keys in one key head, acc over its query heads in a fixed order."""
    key_heads: tl.constexpr = HEADS // GROUP
    head = tl.program_id(0) % key_heads
    first, start_q, queries, start_k, keys = load_block(blocks, tl.program_id(0) // key_heads)
    real = (first + tl.arange(0, BLOCK_K) < keys)[:, None]
    key = tl.load(token_pointers(k + head * k_head, start_k + first, k_token, BLOCK_K, DIM), mask=real, other=0.0)
    value = tl.load(token_pointers(v + head * v_head, start_k + first, v_token, BLOCK_K, DIM), mask=real, other=0.0)

    unseen = first - (keys - queries)
    low = tl.maximum(unseen, 0)
    diagonal = tl.cdiv(tl.maximum(tl.minimum(queries, unseen + BLOCK_K - 1) - low, 0), BLOCK_Q)
    inner = low + diagonal * BLOCK_Q  # queries from here on see the whole block
    whole = tl.maximum(queries - inner, 0) // BLOCK_Q
    tail = inner + whole * BLOCK_Q
    edges = diagonal + (tail < queries).to(tl.int32)
    dk_acc = tl.zeros([BLOCK_K, DIM], tl.float32)
    dv_acc = tl.zeros([BLOCK_K, DIM], tl.float32)
    dk_acc, dv_acc = accumulate_dk_dv(
        key, value, dk_acc, dv_acc, q, d_out_ptr, logsumexp, deltas, total, start_q, queries, unseen,
        low, inner, tail, edges, head * GROUP, q_token, q_head, scale2, HEADS, GROUP, DIM, BLOCK_Q, BLOCK_K, EDGE=True,
    )  # fmt: skip
    dk_acc, dv_acc = accumulate_dk_dv(
        key, value, dk_acc, dv_acc, q, d_out_ptr, logsumexp, deltas, total, start_q, queries, unseen,
        low, inner, tail, whole, head * GROUP, q_token, q_head, scale2, HEADS, GROUP, DIM, BLOCK_Q, BLOCK_K, EDGE=False,
    )  # fmt: skip

    own = token_pointers(head * DIM, start_k + first, key_heads * DIM, BLOCK_K, DIM)
    tl.store(dk + own, (dk_acc * scale).to(dk.dtype.element_ty), mask=real)
    tl.store(dv + own, dv_acc.to(dv.dtype.element_ty), mask=real)
