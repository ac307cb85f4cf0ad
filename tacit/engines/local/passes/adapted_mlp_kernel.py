"""The kernels of adapted_mlp.py, which says what they compute. Import them only where there is triton."""

import triton
import triton.language as tl


@triton.jit
def let_and_read(
    gate_up, lora_A, through, read, rows, inner, stride, RANK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """h = silu(g) · u and h Aᵀ. A program has whole rows, block by block."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there, ranks = (row < rows)[:, None], tl.arange(0, RANK)
    kept = tl.zeros((ROWS, RANK), tl.float32)
    for start in range(0, inner, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        real = columns[None, :] < inner
        here = gate_up + row[:, None] * stride + columns[None, :]
        gate = tl.load(here, mask=there & real, other=0.0).to(tl.float32)
        up = tl.load(here + inner, mask=there & real, other=0.0).to(tl.float32)
        passed = (gate * tl.sigmoid(gate) * up).to(through.dtype.element_ty)
        tl.store(through + row[:, None] * inner + columns[None, :], passed, mask=there & real)
        reads = tl.load(lora_A + ranks[None, :] * inner + columns[:, None], mask=columns[:, None] < inner, other=0.0)
        kept = tl.dot(passed, reads, kept)
    tl.store(read + row[:, None] * RANK + ranks[None, :], kept.to(read.dtype.element_ty), mask=there)


@triton.jit
def pull_and_read(
    gate_up,
    pulled,
    lora_B,
    both,
    read,
    rows,
    inner,
    stride,
    of_gate,
    of_up,
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradients of g and u, and s times each by its B."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there, ranks = (row < rows)[:, None], tl.arange(0, RANK)
    kept_gate, kept_up = tl.zeros((ROWS, RANK), tl.float32), tl.zeros((ROWS, RANK), tl.float32)
    for start in range(0, inner, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        real = columns[None, :] < inner
        here = gate_up + row[:, None] * stride + columns[None, :]
        gate = tl.load(here, mask=there & real, other=0.0).to(tl.float32)
        up = tl.load(here + inner, mask=there & real, other=0.0).to(tl.float32)
        pull = tl.load(pulled + row[:, None] * inner + columns[None, :], mask=there & real, other=0.0).to(tl.float32)
        opened = tl.sigmoid(gate)
        activated = gate * opened
        for_gate = (pull * up * (opened + activated * (1.0 - opened))).to(both.dtype.element_ty)
        for_up = (pull * activated).to(both.dtype.element_ty)
        result = both + row[:, None] * 2 * inner + columns[None, :]
        tl.store(result, for_gate, mask=there & real)
        tl.store(result + inner, for_up, mask=there & real)
        adapter = lora_B + columns[:, None] * RANK + ranks[None, :]
        kept_gate = tl.dot(for_gate, tl.load(adapter, mask=columns[:, None] < inner, other=0.0), kept_gate)
        kept_up = tl.dot(for_up, tl.load(adapter + inner * RANK, mask=columns[:, None] < inner, other=0.0), kept_up)
    result = read + row[:, None] * 2 * RANK + ranks[None, :]
    tl.store(result, (kept_gate * of_gate).to(read.dtype.element_ty), mask=there)
    tl.store(result + RANK, (kept_up * of_up).to(read.dtype.element_ty), mask=there)
