"""Triton kernels of attention.py, layers.py and lora_step.py, which have the equations. Import only where it is installed."""

from __future__ import annotations

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older triton, without programmatic dependent launch
    gdc_launch_dependents = gdc_wait = None


@triton.jit
def wait_for_previous_kernel(USE_PDL: tl.constexpr):
    """Programmatic dependent launch: wait until all earlier kernels are done, then let the next kernel start and wait in turn.
    Every program of a kernel launched this way must call it, since later kernels rely on it. Before the call it must write
    nothing, and read only what neither of the two preceding kernels writes: library kernels may be launched early, too."""
    if USE_PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def decode_attention_kernel(
    q, k_new, v_new, keys, values, positions, rotations, out, split_sums, split_stats, scale, q_row, k_row, v_row, capacity,
    KV: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """One program per slot, key head and split of the positions. The first split also has the new token."""
    wait_for_previous_kernel(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    first_split = split == 0
    dims = tl.arange(0, DIM)
    queries = tl.arange(0, PADDED)
    # Issue all loads together, to wait for memory once. The new key, value and rotation are replicated for every query. Padding
    # repeats the last query, or the last position.
    position = tl.load(positions + row)
    query_offsets = tl.minimum(queries, GROUP - 1)[:, None] * DIM + dims[None, :]
    shared_offsets = queries[:, None] * 0 + dims[None, :]
    query = tl.load(q + row * q_row + head * GROUP * DIM + query_offsets)
    rotation = tl.load(rotations + row * DIM + shared_offsets)
    key = tl.load(k_new + row * k_row + head * DIM + shared_offsets)
    value = tl.load(v_new + row * v_row + head * DIM + shared_offsets)
    # (a + ib)(cos + i sin) for every pair, of the queries and of the new key
    cos, sin = tl.split(tl.reshape(rotation, (PADDED, DIM // 2, 2)))
    a, b = tl.split(tl.reshape(query.to(tl.float32), (PADDED, DIM // 2, 2)))
    query = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (PADDED, DIM)).to(query.dtype)
    a, b = tl.split(tl.reshape(key.to(tl.float32), (PADDED, DIM // 2, 2)))
    key = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (PADDED, DIM)).to(key.dtype)
    first = (row * capacity * KV + head) * DIM
    new = queries[:, None] < tl.where(first_split, 1, 0)
    tl.store(keys + first + position * (KV * DIM) + shared_offsets, key, mask=new)
    tl.store(values + first + position * (KV * DIM) + shared_offsets, value, mask=new)
    # The new token comes from registers: a program does not read back what it stores.
    max_score = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
    # Weights are summed per column of a block, and these sums at the end: no reduction inside the loop.
    blocks = tl.arange(0, BLOCK)
    totals = tl.zeros([PADDED, BLOCK], tl.float32) + tl.where(blocks == 0, 1.0, 0.0)[None, :]
    acc = value.to(tl.float32)
    position = position.to(tl.int32)
    begin, end = 0, position
    if SPLITS > 1:
        max_score = tl.where(first_split, max_score, -float("inf"))
        totals = tl.where(first_split, totals, 0.0)
        acc = tl.where(first_split, acc, 0.0)
        size = tl.cdiv(tl.cdiv(position, SPLITS), BLOCK) * BLOCK
        begin, end = split * size, tl.minimum((split + 1) * size, position)
    for start in range(begin, end, BLOCK):
        columns = start + blocks
        offsets = first + tl.minimum(columns, end - 1)[:, None] * (KV * DIM) + dims[None, :]
        k_block = tl.load(keys + offsets)
        v_block = tl.load(values + offsets)  # loads while scores are computed
        scores = tl.dot(query, tl.trans(k_block)) * scale
        scores = tl.where((columns < end)[None, :], scores, -float("inf"))
        new_max = tl.maximum(max_score, tl.max(scores, 1))
        weights = tl.exp(scores - new_max[:, None])
        rescale = tl.exp(max_score - new_max)
        totals = totals * rescale[:, None] + weights
        acc = acc * rescale[:, None] + tl.dot(weights.to(v_block.dtype), v_block)
        max_score = new_max
    real = queries[:, None] < GROUP
    total = tl.sum(totals, 1)
    if SPLITS == 1:
        acc = acc / total[:, None]
        tl.store(out + row * (KV * GROUP * DIM) + head * GROUP * DIM + query_offsets, acc.to(query.dtype), mask=real)
    else:
        index = ((row * KV + head) * SPLITS + split) * PADDED + queries
        tl.store(split_sums + index[:, None] * DIM + dims[None, :], acc, mask=real)
        tl.store(split_stats + 2 * index, max_score)
        tl.store(split_stats + 2 * index + 1, total)


@triton.jit
def merge_splits_kernel(
    split_sums, split_stats, out,
    KV: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    """One program per slot and query head merges its splits."""
    wait_for_previous_kernel(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    q_head = tl.program_id(1)
    dims = tl.arange(0, DIM)
    splits = tl.arange(0, SPLITS)
    index = ((row * KV + q_head // GROUP) * SPLITS + splits) * PADDED + q_head % GROUP
    max_score, total = tl.load(split_stats + 2 * index), tl.load(split_stats + 2 * index + 1)
    weight = tl.exp(max_score - tl.max(max_score, 0))  # an empty split has −∞ and weight 0
    merged = tl.sum(tl.load(split_sums + index[:, None] * DIM + dims[None, :]) * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + (row * KV * GROUP + q_head) * DIM + dims, merged.to(out.dtype.element_ty))


# Prefix attention. Softmax weights use powers of two: `scale2` is the score scale times log₂ e. Only blocks on the diagonal
# (where some query does not see some key) and at the end of a sequence are masked.


@triton.jit
def load_block(blocks, index):
    """(first token within the sequence, start and number of its queries, start and number of its keys)"""
    block = blocks + index * 5
    return tl.load(block), tl.load(block + 1), tl.load(block + 2), tl.load(block + 3), tl.load(block + 4)


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
    for block_start in range(low, high, BLOCK_K):
        key_index = block_start + tl.arange(0, BLOCK_K)
        k_pointers = token_pointers(k, start_k + block_start, k_token, BLOCK_K, DIM)
        v_pointers = token_pointers(v, start_k + block_start, v_token, BLOCK_K, DIM)
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


@triton.jit
def load_gate_up(gate_up, row, columns, inner, stride):
    """A block of gate and up values of one row, in float32; 0 beyond the row."""
    gates = gate_up + row * stride + columns
    in_row = columns < inner
    return tl.load(gates, mask=in_row, other=0.0).to(tl.float32), tl.load(gates + inner, mask=in_row, other=0.0).to(tl.float32)


@triton.jit
def swiglu_forward_kernel(gate_up, output, inner, stride, BLOCK: tl.constexpr, USE_PDL: tl.constexpr):
    """One program: a block of one row."""
    wait_for_previous_kernel(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_row = columns < inner
    gate, up = load_gate_up(gate_up, row, columns, inner, stride)
    tl.store(output + row * inner + columns, (gate * tl.sigmoid(gate) * up).to(output.dtype.element_ty), mask=in_row)


@triton.jit
def swiglu_backward_kernel(gate_up, grad_out, grad_gate_up, inner, stride, BLOCK: tl.constexpr):
    """One program: the gradients of gate and up, side by side, of a block of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_row = columns < inner
    gate, up = load_gate_up(gate_up, row, columns, inner, stride)
    grad = tl.load(grad_out + row * inner + columns, mask=in_row, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    activated = gate * sigmoid
    output = grad_gate_up + row * 2 * inner + columns
    tl.store(output, (grad * up * (sigmoid + activated * (1.0 - sigmoid))).to(grad_gate_up.dtype.element_ty), mask=in_row)
    tl.store(output + inner, (grad * activated).to(grad_gate_up.dtype.element_ty), mask=in_row)


@triton.jit
def rms_norm_kernel(h, weight, normed, epsilon, WIDTH: tl.constexpr, PADDED: tl.constexpr, USE_PDL: tl.constexpr):
    """One program: one row."""
    wait_for_previous_kernel(USE_PDL)
    columns = tl.arange(0, PADDED)
    in_row = columns < WIDTH
    offsets = tl.program_id(0).to(tl.int64) * WIDTH + columns
    h_float32 = tl.load(h + offsets, mask=in_row, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=in_row, other=0.0)
    scaled = h_float32 * tl.rsqrt(tl.sum(h_float32 * h_float32, 0) / WIDTH + epsilon)
    tl.store(normed + offsets, scaled.to(gain.dtype) * gain, mask=in_row)


@triton.jit(do_not_specialize=["total"])
def rope_into_cache_kernel(
    qkv, positions, rotations, slots, keys, values, total, row,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """One program: all heads of a few tokens, so cos and sin are loaded once."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    in_batch = token < total
    head = tl.arange(0, PADDED)[None, :, None]
    feature = tl.arange(0, DIM)
    within = head * DIM + feature[None, None, :]
    pointers = qkv + token.to(tl.int64)[:, None, None] * row + within
    in_batch_3d = in_batch[:, None, None]
    qkv_heads = tl.load(pointers, mask=in_batch_3d & (head < HEADS + 2 * KEY_HEADS), other=0.0)
    slot = tl.load(slots + token, mask=in_batch, other=0).to(tl.int64)
    position = tl.load(positions + token, mask=in_batch, other=0).to(tl.int64)
    cos_sin = tl.load(rotations + position[:, None] * DIM + feature[None, :])
    cos, sin = tl.split(tl.reshape(cos_sin, (TOKENS, 1, DIM // 2, 2)))
    a, b = tl.split(tl.reshape(qkv_heads.to(tl.float32), (TOKENS, PADDED, DIM // 2, 2)))
    rotated = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (TOKENS, PADDED, DIM)).to(qkv_heads.dtype)
    is_rotated = head < HEADS + KEY_HEADS
    tl.store(pointers, rotated, mask=in_batch_3d & is_rotated)
    cache_offsets = slot[:, None, None] * (KEY_HEADS * DIM) + within
    tl.store(keys + cache_offsets - HEADS * DIM, rotated, mask=in_batch_3d & (head >= HEADS) & is_rotated)
    is_value = (head >= HEADS + KEY_HEADS) & (head < HEADS + 2 * KEY_HEADS)
    tl.store(values + cache_offsets - (HEADS + KEY_HEADS) * DIM, qkv_heads, mask=in_batch_3d & is_value)


@triton.jit
def rope_heads(
    source, row, target, token, in_batch, cos, sin,
    FIRST: tl.constexpr, COUNT: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    ROTATE: tl.constexpr,
):  # fmt: skip
    """Store COUNT heads of a few tokens after the first FIRST heads of the output, with RoPE if ROTATE."""
    head = tl.arange(0, PADDED)[None, :, None]
    within = head * (2 * HALF) + tl.arange(0, HALF)[None, None, :]
    mask = in_batch & (head < COUNT)
    pointers = source + token * row + within
    a = tl.load(pointers, mask=mask, other=0.0)
    b = tl.load(pointers + HALF, mask=mask, other=0.0)
    output = target + token * WIDTH + FIRST * (2 * HALF) + within
    if ROTATE:
        a_float32, b_float32 = a.to(tl.float32), b.to(tl.float32)
        a = (a_float32 * cos - b_float32 * sin).to(a.dtype)
        b = (b_float32 * cos + a_float32 * sin).to(b.dtype)
    tl.store(output, a, mask=mask)
    tl.store(output + HALF, b, mask=mask)


@triton.jit(do_not_specialize=["total"])
def rope_qkv_kernel(
    q, k, v, cosines, sines, rotated, total, q_row, k_row, v_row,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, PADDED: tl.constexpr, PADDED_KEYS: tl.constexpr, HALF: tl.constexpr,
    TOKENS: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """One program: all heads of a few tokens. INVERSE rotates back, for the gradient."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    angle = token[:, None] * HALF + tl.arange(0, HALF)[None, :]
    in_batch = token < total
    cos = tl.load(cosines + angle, mask=in_batch[:, None], other=0.0)[:, None, :]
    sin = tl.load(sines + angle, mask=in_batch[:, None], other=0.0)[:, None, :]
    if INVERSE:
        sin = -sin
    token = token.to(tl.int64)[:, None, None]
    in_batch_3d = in_batch[:, None, None]
    WIDTH: tl.constexpr = (HEADS + 2 * KEY_HEADS) * 2 * HALF
    rope_heads(q, q_row, rotated, token, in_batch_3d, cos, sin, 0, HEADS, PADDED, WIDTH, HALF, True)
    rope_heads(k, k_row, rotated, token, in_batch_3d, cos, sin, HEADS, KEY_HEADS, PADDED_KEYS, WIDTH, HALF, True)
    rope_heads(v, v_row, rotated, token, in_batch_3d, cos, sin, HEADS + KEY_HEADS, KEY_HEADS, PADDED_KEYS, WIDTH, HALF, False)


@triton.jit
def lora_add_rms_norm_kernel(
    h, product, lora_B, weight, normed, epsilon,
    WIDTH: tl.constexpr, RANK: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """One program: one row. h += product + LoRA term, then RMSNorm; summed in float32 and rounded once. B and the norm's weight
    are loaded before waiting for the previous kernel, which does not change them."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    ranks = tl.arange(0, PADDED)
    in_row = columns < WIDTH
    inputs = product + row * (WIDTH + RANK)
    # Load all of B at once: row by row, each load would wait for the previous one.
    in_range = (ranks[:, None] < RANK) & in_row[None, :]
    adapter = tl.load(lora_B + ranks[:, None] * WIDTH + columns[None, :], mask=in_range, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=in_row, other=0.0).to(tl.float32)
    wait_for_previous_kernel(USE_PDL)
    lora_a = tl.load(inputs + WIDTH + ranks, mask=ranks < RANK, other=0.0).to(tl.float32)
    total = tl.load(inputs + columns, mask=in_row, other=0.0).to(tl.float32)
    total += tl.load(h + row * WIDTH + columns, mask=in_row, other=0.0).to(tl.float32)
    total += tl.sum(lora_a[:, None] * adapter, 0)
    new_h = total.to(h.dtype.element_ty)
    tl.store(h + row * WIDTH + columns, new_h, mask=in_row)
    h_float32 = new_h.to(tl.float32)
    scale = tl.rsqrt(tl.sum(h_float32 * h_float32, 0) / WIDTH + epsilon)
    tl.store(normed + row * WIDTH + columns, (h_float32 * scale * gain).to(normed.dtype.element_ty), mask=in_row)


@triton.jit
def lora_swiglu_kernel(
    product, lora_B, out, count,
    INNER: tl.constexpr, RANK: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    """One program: SwiGLU with LoRA of a few rows and a block of features. B is loaded before waiting, as above."""
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ranks = tl.arange(0, PADDED)
    in_block = (rows[:, None] < count) & (columns[None, :] < INNER)
    inputs = product + rows[:, None].to(tl.int64) * (2 * INNER + RANK)
    gate_B_pointers = lora_B + ranks[:, None] * (2 * INNER) + columns[None, :]
    in_range = (ranks[:, None] < RANK) & (columns[None, :] < INNER)
    # Issue all loads before any product: a waiting product would delay later loads.
    gate_B = tl.load(gate_B_pointers, mask=in_range, other=0.0)
    up_B = tl.load(gate_B_pointers + INNER, mask=in_range, other=0.0)
    wait_for_previous_kernel(USE_PDL)
    gate = tl.load(inputs + columns[None, :], mask=in_block, other=0.0)
    up = tl.load(inputs + INNER + columns[None, :], mask=in_block, other=0.0)
    lora_a = tl.load(inputs + 2 * INNER + ranks[None, :], mask=(rows[:, None] < count) & (ranks[None, :] < RANK), other=0.0)
    gate = tl.dot(lora_a, gate_B) + gate.to(tl.float32)
    up = tl.dot(lora_a, up_B) + up.to(tl.float32)
    output = gate * tl.sigmoid(gate) * up
    tl.store(out + rows[:, None].to(tl.int64) * INNER + columns[None, :], output.to(out.dtype.element_ty), mask=in_block)
