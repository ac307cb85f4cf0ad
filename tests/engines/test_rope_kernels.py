"""RoPE kernels: values, gradients, and when they are used."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from interpreted import assert_interpreted
from random_models import as_on_a_gpu, cache_as_on_a_gpu, make_model

from tacit.core.protocols import Request, Sampling
from tacit.core.types import HiddenState
from tacit.engines.local.fast import kv_cache, layers
from tacit.engines.local.fast.kv_cache import KeyValueCache
from tacit.engines.local.fast.layers import EAGER_OPS, SamplerOps, has_rope_cache_kernel, has_rope_qkv_kernel
from tacit.engines.local.fast.llama import LlamaForward, PackedPrompts
from tacit.engines.local.scheduler import LocalSampler

CPU = torch.device("cpu")

ON_TRIAL = """
import torch
from tacit.engines.local.fast.layers import _rope_cache_matches_torch, _rope_qkv_matches_torch
for sizes in ((9, 3, 64), (12, 2, 128), (4, 4, 16)):
    assert _rope_cache_matches_torch(torch.device("cpu"), torch.float16, *sizes), sizes
    assert _rope_cache_matches_torch(torch.device("cpu"), torch.float16, 0, *sizes[1:]), sizes
    assert _rope_qkv_matches_torch(torch.device("cpu"), torch.float16, *sizes), sizes
"""

IN_AN_UPDATE = """
import torch
from tacit.engines.local.fast.layers import EAGER_OPS
from tacit.engines.local.fast.layers import RopeQKV
generator = torch.Generator().manual_seed(0)
for heads, key_heads, dim in ((9, 3, 64), (2, 1, 16)):
    qkv = torch.randn(21, (heads + 2 * key_heads) * dim + 8, generator=generator, requires_grad=True)
    angles = torch.randn(21, 1, dim // 2, generator=generator)
    pull = [torch.randn(21, n, dim, generator=generator) for n in (heads, key_heads, key_heads)]
    pull[1] = pull[1].transpose(0, 1).contiguous().transpose(0, 1)  # as heads may come
    found = []
    for way in (lambda *given: RopeQKV.apply(*given, (heads, key_heads, key_heads)),
                lambda *given: EAGER_OPS.split_qkv_rope(*given, heads, key_heads)):
        answer = way(qkv[:, :-8], angles.cos(), angles.sin())
        found.append([*answer, *torch.autograd.grad(answer, qkv, pull)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
"""


@pytest.mark.parametrize("program", [ON_TRIAL, IN_AN_UPDATE], ids=["as tried on a GPU", "with a gradient"])
def test_interpreted_kernels_match_torch(program) -> None:
    assert_interpreted(program)


def test_no_kernels_on_a_cpu() -> None:
    assert not has_rope_cache_kernel(CPU, torch.bfloat16, 9, 3, 64)
    assert not has_rope_qkv_kernel(CPU, torch.bfloat16, 9, 3, 64)


def test_compiled_updates_use_the_rope_kernel_if_available(monkeypatch) -> None:
    used = []
    monkeypatch.setattr(layers, "has_rope_qkv_kernel", lambda *of: used.append(of[2:]) or True)
    monkeypatch.setattr(layers, "RopeQKV", SimpleNamespace(apply=lambda qkv, cos, sin, sizes: (qkv, *sizes)))
    arguments = torch.randn(5, 4 * 8), torch.randn(5, 1, 4), torch.randn(5, 1, 4), 2, 1
    assert layers.LayerOps(compiled=True).split_qkv_rope(*arguments)[1:] == (2, 1, 1) and used == [(2, 1, 8)]
    assert [x.shape for x in EAGER_OPS.split_qkv_rope(*arguments)] == [(5, 2, 8), (5, 1, 8), (5, 1, 8)] and len(used) == 1


def rotate(qkv_NF, heads, positions_N, rotations, slots_N, keys_SGD, values_SGD):
    """The kernel in torch."""
    key_heads, dim = keys_SGD.shape[1:]
    by_head = qkv_NF.unflatten(1, (-1, dim))
    rotated = heads + key_heads
    by_head[:, :rotated] = SamplerOps.apply_rope(by_head[:, :rotated], torch.view_as_complex(rotations)[positions_N, None])
    keys_SGD[slots_N], values_SGD[slots_N] = by_head[:, heads:rotated], by_head[:, rotated:]


@pytest.mark.parametrize("family", ["llama", "llama-untied-bias", "qwen2", "qwen3"])
def test_prefill_with_the_kernel_gives_the_same_cache_and_logits(family, monkeypatch) -> None:
    torch.manual_seed(0)
    forward, used = LlamaForward(make_model(family)), []
    prompts = PackedPrompts.pack([torch.randint(0, 256, (length,)).numpy() for length in (7, 1, 12)], CPU)
    slots_N = torch.randperm(32)[:20]
    monkeypatch.setattr(kv_cache, "has_rope_cache_kernel", lambda *of: True)
    monkeypatch.setattr(kv_cache, "rope_into_cache", lambda *arguments: used.append(arguments[1]) or rotate(*arguments))
    found = []
    for at_once in (False, True):
        cache = KeyValueCache(forward.shape, head_major=False)  # as on a GPU
        cache.resize(4, 8)
        kept = []

        def sink(layer: int, k: torch.Tensor, v: torch.Tensor, cache=cache, kept=kept) -> None:
            kept.append(layer)
            cache.store(slots_N, None, layer, k, v)

        with torch.inference_mode():
            logits, states = forward.prefill_varlen(
                prompts, HiddenState(1), sink, cache.make_rope_and_store(slots_N) if at_once else None
            )
        found.append([logits, states, *cache.memory])
        assert len(kept) == (0 if at_once and family != "qwen3" else len(forward))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    heads = forward.shape.kv_heads * forward.shape.queries_per_kv
    assert used == ([] if family == "qwen3" else [heads] * (len(forward) - 1) + [0]), "not fused: QK norm"


def test_sampler_uses_the_rope_cache_kernel_unless_rows_share_a_prompt(tokenizer, monkeypatch) -> None:
    """Keys and values of a shared prompt go to several slots, which the kernel does not support."""
    torch.manual_seed(0)
    model, used = make_model("llama"), []
    cache_as_on_a_gpu(monkeypatch)
    monkeypatch.setattr(kv_cache, "has_rope_cache_kernel", lambda *of: True)

    def apply_rope(qkv_NF, heads, positions_N, rotations, slots_N, *cached):
        assert len(slots_N) == len(qkv_NF) == len(positions_N)
        used.append(len(qkv_NF))
        rotate(qkv_NF, heads, positions_N, rotations, slots_N, *cached)

    monkeypatch.setattr(kv_cache, "rope_into_cache", apply_rope)
    sampler, rng = as_on_a_gpu(model, tokenizer, monkeypatch, varlen=True), np.random.default_rng(0)
    alone, scheduler = LocalSampler(model, tokenizer, "cpu"), sampler.open_scheduler(Sampling())
    for turn in range(5):  # the third prefill of a shape is captured
        prompts = [rng.integers(0, 256, 20) for _ in range(4)]
        shared = turn == 3
        requests = [Request(prompts[0 if shared else i], seed=10 * turn + i, max_tokens=4) for i in range(4)]
        before = len(used)
        waiting = {scheduler.submit(request): request for request in requests}
        while finished := scheduler.wait():
            for request_id, completion in finished:
                (expected,) = alone.sample([waiting.pop(request_id)], Sampling())
                assert completion.tokens.tolist() == expected.tokens.tolist()
        assert not waiting and (len(used) == before) == shared
    assert len(scheduler.batch.prefill_graphs) == 1, "no graph was captured"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernels_on_a_gpu() -> None:
    pytest.importorskip("triton")
    for sizes in ((9, 3, 64), (12, 2, 128)):
        assert has_rope_cache_kernel(torch.device("cuda"), torch.bfloat16, *sizes)
        assert has_rope_qkv_kernel(torch.device("cuda"), torch.bfloat16, *sizes)
