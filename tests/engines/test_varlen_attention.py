"""Varlen attention kernels: outputs, gradients, block tables, and where they are used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from interpreted import assert_compiled, assert_interpreted

from tacit.engines.local.fast import kernels, varlen_attention
from tacit.engines.local.fast.varlen_attention import (
    SequenceLayout,
    attend_varlen,
    has_varlen_kernels,
    max_blocks,
    split_into_blocks,
)

CPU = torch.device("cpu")

ON_TRIAL = """
import torch
from tacit.engines.local.fast.varlen_attention import _matches_torch
with torch.inference_mode():
    assert _matches_torch(torch.device("cpu"), torch.float16, 4, 2, 64)
"""

IN_SMALL_BLOCKS = """
import numpy as np
import torch
from tacit.engines.local.fast import varlen_attention as span_attention
from tacit.engines.local.fast.varlen_attention import _attend_row_by_row
from tacit.engines.local.fast.varlen_attention import SequenceLayout
generator = torch.Generator().manual_seed(0)
queries_B, keys_B = np.array([1, 0, 53]), np.array([1, 5, 66])
for heads, key_heads, dim, block_q, block_k in ((6, 1, 128, 16, 32), (3, 1, 64, 32, 16)):
    span_attention.LAUNCHES[dim] = dict.fromkeys(span_attention.LAUNCHES[dim], {"BLOCK_Q": block_q, "BLOCK_K": block_k})
    spans = SequenceLayout.of(queries_B, keys_B, torch.device("cpu"))
    joined = torch.randn(keys_B.sum(), heads + 2 * key_heads, dim, generator=generator, requires_grad=True)
    q, k, v = joined.split([heads, key_heads, key_heads], 1)  # as a joint projection leaves them
    q = q[: queries_B.sum()]
    pull = torch.randn(q.shape, generator=generator)
    found, expected = (way(q, k, v, spans, 0.3) for way in (span_attention.TritonVarlenAttention.apply, _attend_row_by_row))
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(out, joined, pull)[0] for out in (found, expected)]
    torch.testing.assert_close(*gradients, atol=2e-5, rtol=1e-4)
none = np.array([0, 0])
q, k = torch.zeros(0, 4, 64, requires_grad=True), torch.ones(7, 2, 64, requires_grad=True)
found = span_attention.TritonVarlenAttention.apply(q, k, k, SequenceLayout.of(none, np.array([3, 4]), torch.device("cpu")), 1.0)
assert found.shape == q.shape and not torch.autograd.grad(found.sum(), k)[0].any()
"""


AS_RECORDED = """
import numpy as np
import torch
from tacit.engines.local.fast.varlen_attention import _attend_row_by_row
from tacit.engines.local.fast.varlen_attention import LAUNCHES, varlen_forward
from tacit.engines.local.fast.varlen_attention import SequenceLayout
from tacit.engines.local.fast.cuda_graphs import PrefillBuffers, PrefillShape
BLOCK = LAUNCHES[64]["forward"]["BLOCK_Q"]
lengths, cpu, generator = (70, 1, 40), torch.device("cpu"), torch.Generator().manual_seed(0)
fixed = PrefillBuffers(PrefillShape.fit(np.array(lengths)), cpu, BLOCK)
for _ in range(2):  # the second time where the first has been
    fixed.fill([np.zeros(length, np.int64) for length in lengths], np.arange(sum(lengths)), 999)
    for spans in (fixed.as_prompts().spans, fixed.as_prompts().last):
        queries = fixed.shape.tokens if spans.max_seqlen_q > 1 else fixed.shape.prompts
        q = torch.randn(queries, 4, 64, generator=generator)
        k, v = torch.randn(2, fixed.shape.tokens, 2, 64, generator=generator)
        found, _ = varlen_forward(q, k, v, spans, 0.3)
        torch.testing.assert_close(found, _attend_row_by_row(q, k, v, spans, 0.3))
    lengths = (5, 6)
from tacit.engines.local.fast.llama import CachedPrefixes, PackedPrompts
known, slots = np.array([70, 3, 129]), np.array([400, 0, 200])  # rows of a cache, of which the last tokens are new
rests = [np.zeros(length, np.int64) for length in (5, 80, 1)]
fixed = PrefillBuffers(PrefillShape.fit(np.array([5, 80, 1])), cpu, BLOCK)
fixed.fill(rests, np.arange(86), 999, CachedPrefixes(known, slots))
k, v = torch.randn(2, 600, 2, 64, generator=generator)
for told in (fixed.as_prompts(in_cache=True), PackedPrompts.pack(rests, cpu, CachedPrefixes(known, slots), BLOCK)):
    assert told.positions_N[:6].tolist() == [70, 71, 72, 73, 74, 3] and told.ends_U[:3].tolist() == [4, 84, 85]
    for spans, queries in ((told.spans, 86), (told.last, 3)):
        q = torch.randn(fixed.shape.tokens, 4, 64, generator=generator)
        found, _ = varlen_forward(q, k, v, spans, 0.3)
        lengths = np.array([5, 80, 1]) if queries == 86 else np.ones(3, np.int64)
        ends = slots + known + np.array([5, 80, 1])
        starts = np.cumsum(lengths) - lengths
        for start, length, first, end in zip(starts, lengths, slots, ends):
            one = SequenceLayout.of(np.array([length]), np.array([end - first]), cpu)
            expected = _attend_row_by_row(q[start : start + length], k[first:end], v[first:end], one, 0.3)
            torch.testing.assert_close(found[start : start + length], expected)
"""

PROGRAMS = {"as tried on a GPU": ON_TRIAL, "in small blocks": IN_SMALL_BLOCKS, "as recorded": AS_RECORDED}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_interpreted_kernels_compute_what_they_should(program) -> None:
    assert_interpreted(program)


COMPILED = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tacit.engines.local.fast import varlen_attention_kernels as kernels
from tacit.engines.local.fast.varlen_attention import LAUNCHES

def compiled(kernel, launch, **sizes):
    types = {"logsumexp": "*fp32", "deltas": "*fp32", "blocks": "*i32", "scale": "fp32", "scale2": "fp32", "total": "i32"}
    strides = {f"{x}_{what}": "i32" for x in "qkv" for what in ("token", "head")}
    fixed = {**sizes, "BLOCK_Q": launch["BLOCK_Q"], "BLOCK_K": launch["BLOCK_K"]}
    signature = {name: "constexpr" if name in fixed else (types | strides).get(name, "*bf16") for name in kernel.arg_names}
    whole = [i for i, (name, kind) in enumerate(signature.items()) if kind[0] == "*" or name in strides]
    aligned = {(i,): [["tt.divisibility", 16]] for i in whole}
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed, attrs=aligned)
    how = {"num_warps": launch["num_warps"], "num_stages": launch["num_stages"]}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=how).asm["ptx"]

for name, launch in LAUNCHES[128].items():
    kernel = getattr(kernels, f"varlen_{name}_kernel")
    ptx = compiled(kernel, launch, HEADS=12, GROUP=6, DIM=128)
    asked = re.findall(r"cp\\.async\\.c[ag]\\S* \\[.*?\\], \\[.*?\\], 0x\\w+, (\\S+);", ptx)
    always = [size for size in asked if re.search(rf"mov\\.b32\\s+{size}, \\d+;", ptx) or not size.startswith("%")]
    assert asked and not always, (name, len(asked), always)
"""


def test_what_is_asked_for_ahead_of_time_is_asked_for_where_there_is_a_turn() -> None:
    """As compiled for a Hopper, which needs none: bytes of a load ahead of the loop are none where it has no turns. With a
    division by the number of turns the compiler takes it that there are some, and the load reads what may not be there."""
    assert_compiled(COMPILED)


def test_every_token_has_one_block_and_those_with_most_to_do_come_first() -> None:
    queries_B, keys_B = np.array([5, 0, 1, 9]), np.array([5, 3, 8, 11])
    spans = SequenceLayout.of(queries_B, keys_B, CPU)
    table = spans.get_blocks("queries", 4)
    assert table.dtype == torch.int32 and table is spans.get_blocks("queries", 4)
    # first of its block, then the row: queries' start and number, keys' start and number
    assert table.tolist() == [
        [8, 6, 9, 16, 11],  # sees 11 keys
        [4, 6, 9, 16, 11],  # 10
        [0, 5, 1, 8, 8],  # 8
        [0, 6, 9, 16, 11],  # 6
        [4, 0, 5, 0, 5],  # 5
        [0, 0, 5, 0, 5],  # 4
    ]
    found = [(start + first, min(first + 4, keys) - first) for first, _, _, start, keys in spans.get_blocks("keys", 4).tolist()]
    assert found[0] == (16, 4) and found[-1] == (5, 3), "seen by nine queries, and by none"
    assert sorted(token for start, count in found for token in range(start, start + count)) == list(range(keys_B.sum()))


@pytest.mark.parametrize("there", [True, False])
def test_they_are_used_where_they_hold(monkeypatch, there) -> None:
    used = []

    class Attended:
        @staticmethod
        def apply(q, k, v, spans, scale):
            used.append(len(q))
            return varlen_attention._attend_row_by_row(q, k, v, spans, scale)

    monkeypatch.setattr(varlen_attention, "has_varlen_kernels", lambda *of: there)
    monkeypatch.setattr(varlen_attention, "TritonVarlenAttention", Attended)
    spans = SequenceLayout.of(np.array([3, 2]), np.array([3, 4]), CPU)
    q, k, v = torch.randn(5, 4, 8), torch.randn(7, 2, 8), torch.randn(7, 2, 8)
    expected = varlen_attention._attend_row_by_row(q, k, v, spans, 0.3)
    assert torch.equal(attend_varlen(q, k, v, spans, 0.3), expected) and used == ([5] if there else [])


@pytest.mark.parametrize("size", [1, 4, 64])
def test_no_rows_have_more_blocks_than_the_most(size) -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        lengths_B = rng.integers(1, 200, rng.integers(1, 20))
        blocks = len(split_into_blocks(lengths_B, lengths_B, "queries", size))
        assert blocks <= max_blocks(int(lengths_B.sum()), len(lengths_B), size) < blocks + len(lengths_B) + 1


def test_a_cpu_has_no_such_kernels() -> None:
    assert not has_varlen_kernels(CPU, torch.bfloat16, 12, 2, 128)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_hopper_has_them() -> None:
    pytest.importorskip("triton")
    device = torch.device("cuda")
    hopper = kernels.nvidia_generation(device) == kernels.HOPPER
    assert all(has_varlen_kernels(device, torch.bfloat16, *sizes) == hopper for sizes in ((9, 3, 64), (12, 2, 128)))
    assert not has_varlen_kernels(device, torch.bfloat16, 12, 2, 96), "untuned"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_hopper_gradients_have_the_same_bits_again() -> None:
    pytest.importorskip("triton")
    device, lengths_B = torch.device("cuda"), np.array([700, 1, 333])
    if not has_varlen_kernels(device, torch.bfloat16, 9, 3, 64):
        pytest.skip("our kernels are for a Hopper GPU")
    generator, spans = torch.Generator(device).manual_seed(0), SequenceLayout.of(lengths_B, lengths_B, device)
    q, k, v, pull = (
        torch.randn(int(lengths_B.sum()), heads, 64, generator=generator, device=device).bfloat16() for heads in (9, 3, 3, 9)
    )
    asked = [x.requires_grad_() for x in (q, k, v)]
    first, again = (torch.autograd.grad(attend_varlen(*asked, spans, 0.125), asked, pull) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
