"""Attention over prompts with cached prefixes: the kernel, its work list, and when it is used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from interpreted import assert_compiled, assert_interpreted

from tacit.engines.local.fast import attention, kernels
from tacit.engines.local.fast.attention import (
    LAUNCH,
    SequenceLayout,
    attend_varlen,
    has_prefix_kernel,
    max_blocks,
    split_into_blocks,
)

CPU = torch.device("cpu")

PROBE = """
import torch
from tacit.engines.local.fast.attention import LAUNCH, _prefix_matches_torch
with torch.inference_mode():
    assert _prefix_matches_torch(torch.device("cpu"), torch.float16, 4, 2, 64)
    for heads, key_heads, dim, block_q, block_k in ((6, 1, 128, 16, 32), (3, 1, 64, 32, 16)):
        LAUNCH.update(BLOCK_Q=block_q, BLOCK_K=block_k)
        assert _prefix_matches_torch(torch.device("cpu"), torch.float32, heads, key_heads, dim)
"""

RECORDED = """
import numpy as np
import torch
from tacit.engines.local.fast.cuda_graphs import PrefillBuffers, PrefillShape
from tacit.engines.local.fast.llama import CachedPrefixes, PackedPrompts
from tacit.engines.local.fast.attention import SequenceLayout, attend_row_by_row, attend_prefix
cpu, generator = torch.device("cpu"), torch.Generator().manual_seed(0)
known, slots = np.array([70, 3, 129]), np.array([400, 0, 200])  # rows of a cache, of which the last tokens are new
rests = [np.zeros(length, np.int64) for length in (5, 80, 1)]
fixed = PrefillBuffers(PrefillShape.fit(np.array([5, 80, 1])), cpu)
fixed.fill(rests, np.arange(86), 999, CachedPrefixes(known, slots))
k, v = torch.randn(2, 600, 2, 64, generator=generator)
for prompts in (fixed.as_prompts(in_cache=True), PackedPrompts.pack(rests, cpu, CachedPrefixes(known, slots))):
    assert prompts.positions_N[:6].tolist() == [70, 71, 72, 73, 74, 3] and prompts.ends_U[:3].tolist() == [4, 84, 85]
    for layout, queries in ((prompts.layout, 86), (prompts.last_layout, 3)):
        q = torch.randn(fixed.shape.tokens, 4, 64, generator=generator)
        found = attend_prefix(q, k, v, layout, 0.3)
        lengths = np.array([5, 80, 1]) if queries == 86 else np.ones(3, np.int64)
        ends = slots + known + np.array([5, 80, 1])
        starts = np.cumsum(lengths) - lengths
        for start, length, first, end in zip(starts, lengths, slots, ends):
            one = SequenceLayout.of(np.array([length]), np.array([end - first]), cpu)
            expected = attend_row_by_row(q[start : start + length], k[first:end], v[first:end], one, 0.3)
            torch.testing.assert_close(found[start : start + length], expected)
"""


@pytest.mark.parametrize("program", [PROBE, RECORDED])
def test_interpreted_kernel_matches_torch(program) -> None:
    assert_interpreted(program)


COMPILED = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tacit.engines.local.fast.attention import LAUNCH
from tacit.engines.local.fast.triton_kernels import prefix_attention_kernel as kernel

strides = {f"{x}_{what}": "i32" for x in "qkv" for what in ("token", "head")}
types = strides | {"blocks": "*i32", "scale2": "fp32"}
fixed = {"HEADS": 12, "GROUP": 6, "DIM": 128, "BLOCK_Q": LAUNCH["BLOCK_Q"], "BLOCK_K": LAUNCH["BLOCK_K"]}
signature = {name: "constexpr" if name in fixed else types.get(name, "*bf16") for name in kernel.arg_names}
whole = [i for i, (name, kind) in enumerate(signature.items()) if kind[0] == "*" or name in strides]
source = ASTSource(fn=kernel, signature=signature, constexprs=fixed, attrs={(i,): [["tt.divisibility", 16]] for i in whole})
how = {"num_warps": LAUNCH["num_warps"], "num_stages": LAUNCH["num_stages"]}
ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=how).asm["ptx"]
sizes = re.findall(r"cp\\.async\\.c[ag]\\S* \\[.*?\\], \\[.*?\\], 0x\\w+, (\\S+);", ptx)
always = [size for size in sizes if re.search(rf"mov\\.b32\\s+{size}, \\d+;", ptx) or not size.startswith("%")]
assert sizes and not always, (len(sizes), always)
"""


def test_compiled_kernel_has_no_unconditional_prefetch() -> None:
    """Loads ahead of an empty loop must read nothing. Cross-compiled for Hopper, without a GPU."""
    assert_compiled(COMPILED)


def test_blocks_with_the_most_keys_come_first(monkeypatch) -> None:
    monkeypatch.setitem(LAUNCH, "BLOCK_Q", 4)
    queries_B, keys_B = np.array([5, 0, 1, 9]), np.array([5, 3, 8, 11])
    table = split_into_blocks(queries_B, keys_B, np.array([0, 5, 8, 16]))
    assert table.dtype == np.int32
    # columns: first query of the block; start and number of the row's queries; start and number of its keys
    assert table.tolist() == [
        [8, 6, 9, 16, 11],  # sees 11 keys
        [4, 6, 9, 16, 11],  # 10
        [0, 5, 1, 8, 8],  # 8
        [0, 6, 9, 16, 11],  # 6
        [4, 0, 5, 0, 5],  # 5
        [0, 0, 5, 0, 5],  # 4
    ]


@pytest.mark.parametrize("there", [True, False])
def test_kernel_is_used_only_for_cached_keys(monkeypatch, there) -> None:
    used = []

    def attended(q, k, v, layout, scale):
        used.append(len(q))
        return attention.attend_row_by_row(q, k, v, layout, scale)

    monkeypatch.setattr(attention, "has_prefix_kernel", lambda *of: there)
    monkeypatch.setattr(attention, "attend_prefix", attended)
    queries_B, keys_B = np.array([3, 2]), np.array([3, 4])
    q, k, v = torch.randn(5, 4, 8), torch.randn(7, 2, 8), torch.randn(7, 2, 8)
    packed, cached = (
        SequenceLayout.of(queries_B, keys_B, CPU),
        SequenceLayout.in_cache(queries_B, keys_B, np.array([0, 3]), CPU),
    )
    expected = attention.attend_row_by_row(q, k, v, packed, 0.3)
    assert torch.equal(attend_varlen(q, k, v, packed, 0.3), expected) and not used
    assert torch.equal(attend_varlen(q, k, v, cached, 0.3), expected) and used == ([5] if there else [])


@pytest.mark.parametrize("size", [1, 4, 64])
def test_max_blocks_is_an_upper_bound(size, monkeypatch) -> None:
    monkeypatch.setitem(LAUNCH, "BLOCK_Q", size)
    rng = np.random.default_rng(0)
    for _ in range(100):
        lengths_B = rng.integers(1, 200, rng.integers(1, 20))
        blocks = len(split_into_blocks(lengths_B, lengths_B, np.zeros_like(lengths_B)))
        assert blocks <= max_blocks(int(lengths_B.sum()), len(lengths_B)) < blocks + len(lengths_B) + 1


def test_no_kernel_on_a_cpu() -> None:
    assert not has_prefix_kernel(CPU, torch.bfloat16, 12, 2, 128)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernel_on_a_hopper_gpu() -> None:
    pytest.importorskip("triton")
    device = torch.device("cuda")
    hopper = kernels.nvidia_generation(device) == kernels.HOPPER
    assert all(has_prefix_kernel(device, torch.bfloat16, *sizes) == hopper for sizes in ((9, 3, 64), (12, 2, 128)))
    assert not has_prefix_kernel(device, torch.bfloat16, 12, 2, 96), "no launch options for this head_dim"
