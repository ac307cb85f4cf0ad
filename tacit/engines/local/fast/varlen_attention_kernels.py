"""The kernels of span_attention.py, which says what they compute. Import them only where there is triton.

Weights are powers of two: `scale2` is the scores' scale times log₂ e. A block on the diagonal is one in which some query does
not see some key; only there, and at a row's end, is anything masked. How many queries there are in all is another number in
every pass, and no reason to compile anew.
"""

import triton
import triton.language as tl


@triton.jit
def load_block(blocks, index):
    """A block's first token, and its row: where its queries start, how many they are, where its keys start, how many."""
    here = blocks + index * 5
    return tl.load(here), tl.load(here + 1), tl.load(here + 2), tl.load(here + 3), tl.load(here + 4)


@triton.jit
def token_pointers(base, start, token_stride, SIZE: tl.constexpr, DIM: tl.constexpr):
    """[SIZE, DIM] places of tokens from `start` on, in a head that begins at `base`."""
    within = tl.arange(0, SIZE)[:, None] * token_stride + tl.arange(0, DIM)[None, :]
    return base + start.to(tl.int64) * token_stride + within


@triton.jit
def attend_keys(
    asked, best, weight, summed, k, v, start_k, keys, seen, low, high, k_token, v_token, scale2,
    DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Keys from `low` to `high` into the running maximum of the scores and the sums of weights and of weighted values.

    The block's first query sees the keys 0 … `seen`, each further one a key more."""
    for here in range(low, high, BLOCK_K):
        behind = here + tl.arange(0, BLOCK_K)
        keys_at = token_pointers(k, start_k + here, k_token, BLOCK_K, DIM)
        values_at = token_pointers(v, start_k + here, v_token, BLOCK_K, DIM)
        if DIAGONAL:
            key = tl.load(keys_at, mask=behind[:, None] < keys, other=0.0)
        else:
            key = tl.load(keys_at)
        scores = tl.dot(asked, tl.trans(key))
        if DIAGONAL:
            sees = behind[None, :] <= seen + tl.arange(0, BLOCK_Q)[:, None]
            scores = tl.where(sees, scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1) * scale2)
        weights = tl.exp2(scores * scale2 - higher[:, None])
        shrunk = tl.exp2(best - higher)
        weight = weight * shrunk + tl.sum(weights, 1)
        if DIAGONAL:
            value = tl.load(values_at, mask=behind[:, None] < keys, other=0.0)
        else:
            value = tl.load(values_at)
        summed = tl.dot(weights.to(value.dtype), value, summed * shrunk[:, None])
        best = higher
    return best, weight, summed


@triton.jit(do_not_specialize=["total"])
def varlen_forward_kernel(
    q, k, v, out, logsumexp, blocks, total, q_token, q_head, k_token, k_head, v_token, v_head, scale2,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A program has a block of queries in one head; programs side by side have the heads of one block, which share keys."""
    head = tl.program_id(0) % HEADS
    first, start_q, queries, start_k, keys = load_block(blocks, tl.program_id(0) // HEADS)
    rows = first + tl.arange(0, BLOCK_Q)
    real = rows < queries
    asked = tl.load(token_pointers(q + head * q_head, start_q + first, q_token, BLOCK_Q, DIM), mask=real[:, None], other=0.0)
    k += (head // GROUP) * k_head
    v += (head // GROUP) * v_head

    seen = keys - queries + first
    inner = (seen + 1) // BLOCK_K * BLOCK_K  # keys in blocks that all of these queries see
    last = tl.minimum(keys, seen + BLOCK_Q)
    best = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_Q], tl.float32)
    summed = tl.zeros([BLOCK_Q, DIM], tl.float32)
    best, weight, summed = attend_keys(
        asked, best, weight, summed, k, v, start_k, keys, seen, 0, inner, k_token, v_token, scale2,
        DIM, BLOCK_Q, BLOCK_K, DIAGONAL=False,
    )  # fmt: skip
    best, weight, summed = attend_keys(
        asked, best, weight, summed, k, v, start_k, keys, seen, inner, last, k_token, v_token, scale2,
        DIM, BLOCK_Q, BLOCK_K, DIAGONAL=True,
    )  # fmt: skip

    found = (summed / weight[:, None]).to(out.dtype.element_ty)
    tl.store(token_pointers(out + head * DIM, start_q + first, HEADS * DIM, BLOCK_Q, DIM), found, mask=real[:, None])
    tl.store(logsumexp + head.to(tl.int64) * total + start_q + rows, best + tl.log2(weight), mask=real)


@triton.jit
def accumulate_dq(
    asked, pull, level, product, summed, k, v, start_k, keys, seen, low, high, k_token, v_token, scale2,
    DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Keys from `low` to `high` into the sum over keys of a query's gradient."""
    for here in range(low, high, BLOCK_K):
        behind = here + tl.arange(0, BLOCK_K)
        keys_at = token_pointers(k, start_k + here, k_token, BLOCK_K, DIM)
        values_at = token_pointers(v, start_k + here, v_token, BLOCK_K, DIM)
        if DIAGONAL:
            key = tl.load(keys_at, mask=behind[:, None] < keys, other=0.0)
            value = tl.load(values_at, mask=behind[:, None] < keys, other=0.0)
        else:
            key = tl.load(keys_at)
            value = tl.load(values_at)
        scores = tl.dot(asked, tl.trans(key))
        if DIAGONAL:
            sees = behind[None, :] <= seen + tl.arange(0, BLOCK_Q)[:, None]
            scores = tl.where(sees, scores, float("-inf"))
        weights = tl.exp2(scores * scale2 - level[:, None])
        pulled = weights * (tl.dot(pull, tl.trans(value)) - product[:, None])
        summed = tl.dot(pulled.to(key.dtype), key, summed)
    return summed


@triton.jit(do_not_specialize=["total"])
def varlen_backward_q_kernel(
    q, k, v, out, gradient, logsumexp, products, pulled, blocks, total,
    q_token, q_head, k_token, k_head, v_token, v_head, scale, scale2,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries in one head, and δ of each, which the keys' gradient wants as well."""
    head = tl.program_id(0) % HEADS
    first, start_q, queries, start_k, keys = load_block(blocks, tl.program_id(0) // HEADS)
    rows = first + tl.arange(0, BLOCK_Q)
    real = rows < queries
    asked = tl.load(token_pointers(q + head * q_head, start_q + first, q_token, BLOCK_Q, DIM), mask=real[:, None], other=0.0)
    own = token_pointers(head * DIM, start_q + first, HEADS * DIM, BLOCK_Q, DIM)
    pull = tl.load(gradient + own, mask=real[:, None], other=0.0)
    found = tl.load(out + own, mask=real[:, None], other=0.0)
    product = tl.sum(found.to(tl.float32) * pull.to(tl.float32), 1)
    flat = head.to(tl.int64) * total + start_q + rows
    tl.store(products + flat, product, mask=real)
    level = tl.load(logsumexp + flat, mask=real, other=float("inf"))
    k += (head // GROUP) * k_head
    v += (head // GROUP) * v_head

    seen = keys - queries + first
    inner = (seen + 1) // BLOCK_K * BLOCK_K
    last = tl.minimum(keys, seen + BLOCK_Q)
    summed = tl.zeros([BLOCK_Q, DIM], tl.float32)
    summed = accumulate_dq(
        asked, pull, level, product, summed, k, v, start_k, keys, seen, 0, inner, k_token, v_token, scale2,
        DIM, BLOCK_Q, BLOCK_K, DIAGONAL=False,
    )  # fmt: skip
    summed = accumulate_dq(
        asked, pull, level, product, summed, k, v, start_k, keys, seen, inner, last, k_token, v_token, scale2,
        DIM, BLOCK_Q, BLOCK_K, DIAGONAL=True,
    )  # fmt: skip
    tl.store(pulled + own, (summed * scale).to(pulled.dtype.element_ty), mask=real[:, None])


@triton.jit
def accumulate_dk_dv(
    key, value, for_key, for_value, q, gradient, logsumexp, products, total, start_q, queries, unseen,
    low, inner, tail, count, head, q_token, q_head, scale2,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """`count` blocks of queries, in each head of a group from `head` on, into the sums of a block of keys. One loop for all
    heads: between two loops nothing is asked for ahead of time.

    The edges are the blocks from `low` to `inner`, in which some query does not see some key, and what is left from `tail` on,
    where the row ends. The block's first key is seen by the queries from `unseen` on (or all, where that is negative), each
    further key by one query less. A query beyond its row weighs nothing, as if its scores' sum were infinite."""
    within = tl.arange(0, BLOCK_Q)
    # What is asked for ahead of time is computed before it is known whether there is a turn: a division by no blocks at all
    # would tell the compiler that there are some.
    of_a_head = tl.maximum(count, 1)
    for turn in range(count * GROUP):
        mine = head + turn // of_a_head
        if EDGE:
            here = low + turn % of_a_head * BLOCK_Q
            here = tl.where(here < inner, here, tail)
        else:
            here = inner + turn % of_a_head * BLOCK_Q
        asked_at = token_pointers(q + mine * q_head, start_q + here, q_token, BLOCK_Q, DIM)
        pull_at = token_pointers(gradient + mine * DIM, start_q + here, HEADS * DIM, BLOCK_Q, DIM)
        flat = mine.to(tl.int64) * total + start_q + here  # one number: places that differ by a constant share registers
        if EDGE:
            real = within < queries - here
            asked = tl.load(asked_at, mask=real[:, None], other=0.0)
            level = tl.load(logsumexp + flat + within, mask=real, other=float("inf"))
        else:
            asked = tl.load(asked_at)
            level = tl.load(logsumexp + flat + within)
        scores = tl.dot(key, tl.trans(asked))
        if EDGE:
            sees = unseen - here + tl.arange(0, BLOCK_K)[:, None] <= within[None, :]
            scores = tl.where(sees, scores, float("-inf"))
        weights = tl.exp2(scores * scale2 - level[None, :])
        if EDGE:
            pull = tl.load(pull_at, mask=real[:, None], other=0.0)
            product = tl.load(products + flat + within, mask=real, other=0.0)
        else:
            pull = tl.load(pull_at)
            product = tl.load(products + flat + within)
        for_value = tl.dot(weights.to(pull.dtype), pull, for_value)
        pulled = weights * (tl.dot(value, tl.trans(pull)) - product[None, :])
        for_key = tl.dot(pulled.to(asked.dtype), asked, for_key)
    return for_key, for_value


@triton.jit(do_not_specialize=["total"])
def varlen_backward_kv_kernel(
    q, k, v, gradient, logsumexp, products, pulled_k, pulled_v, blocks, total,
    q_token, q_head, k_token, k_head, v_token, v_head, scale, scale2,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and values in one key head, whose query heads are all summed here, in a fixed order."""
    key_heads: tl.constexpr = HEADS // GROUP
    head = tl.program_id(0) % key_heads
    first, start_q, queries, start_k, keys = load_block(blocks, tl.program_id(0) // key_heads)
    real = (first + tl.arange(0, BLOCK_K) < keys)[:, None]
    key = tl.load(token_pointers(k + head * k_head, start_k + first, k_token, BLOCK_K, DIM), mask=real, other=0.0)
    value = tl.load(token_pointers(v + head * v_head, start_k + first, v_token, BLOCK_K, DIM), mask=real, other=0.0)

    unseen = first - (keys - queries)
    low = tl.maximum(unseen, 0)
    diagonal = tl.cdiv(tl.maximum(tl.minimum(queries, unseen + BLOCK_K - 1) - low, 0), BLOCK_Q)
    inner = low + diagonal * BLOCK_Q  # queries from here on see all of the block
    whole = tl.maximum(queries - inner, 0) // BLOCK_Q
    tail = inner + whole * BLOCK_Q
    edges = diagonal + (tail < queries).to(tl.int32)
    for_key = tl.zeros([BLOCK_K, DIM], tl.float32)
    for_value = tl.zeros([BLOCK_K, DIM], tl.float32)
    for_key, for_value = accumulate_dk_dv(
        key, value, for_key, for_value, q, gradient, logsumexp, products, total, start_q, queries, unseen,
        low, inner, tail, edges, head * GROUP, q_token, q_head, scale2, HEADS, GROUP, DIM, BLOCK_Q, BLOCK_K, EDGE=True,
    )  # fmt: skip
    for_key, for_value = accumulate_dk_dv(
        key, value, for_key, for_value, q, gradient, logsumexp, products, total, start_q, queries, unseen,
        low, inner, tail, whole, head * GROUP, q_token, q_head, scale2, HEADS, GROUP, DIM, BLOCK_Q, BLOCK_K, EDGE=False,
    )  # fmt: skip

    own = token_pointers(head * DIM, start_k + first, key_heads * DIM, BLOCK_K, DIM)
    tl.store(pulled_k + own, (for_key * scale).to(pulled_k.dtype.element_ty), mask=real)
    tl.store(pulled_v + own, for_value.to(pulled_v.dtype.element_ty), mask=real)
