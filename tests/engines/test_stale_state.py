"""Stale state: changed or moved weights, interrupted cache resizes, buffers still in use, and token limits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from random_models import as_on_a_gpu, make_model, plain_logprobs

from tacit.core.protocols import Request, Sampling
from tacit.engines.local.decoding import DecodeState
from tacit.engines.local.fast.cuda_graphs import PrefillBuffers, PrefillShape
from tacit.engines.local.fast.kv_cache import KeyValueCache
from tacit.engines.local.fast.llama import LlamaForward
from tacit.engines.local.fast.llama_decoding import LlamaDecodeBatch, LlamaDecoder

PROMPT = np.arange(12)


def check(sampler, model, turn: int) -> None:
    (completion,) = sampler.sample([Request(PROMPT, seed=turn, max_tokens=6)], Sampling())
    np.testing.assert_allclose(completion.logprobs, plain_logprobs(model, PROMPT, completion.tokens), atol=1e-4)


@pytest.mark.parametrize(
    "family, name",
    [("llama", "model.norm"), ("llama", "model.layers.1.mlp.up_proj"), ("llama", "model.layers.0.post_attention_layernorm")]
    + [("qwen3", f"model.layers.1.self_attn.{which}_norm") for which in "qk"],
)
@pytest.mark.parametrize("how", ["in place", "data", "parameter"])
def test_weight_changes_are_detected_without_a_call_to_weights_changed(family, name, how, tokenizer, monkeypatch):
    torch.manual_seed(0)
    model = make_model(family)
    sampler = as_on_a_gpu(model, tokenizer, monkeypatch)
    check(sampler, model, 0)
    module = model.get_submodule(name)
    fresh = module.weight.detach() * 1.7
    with torch.no_grad():
        if how == "in place":
            module.weight.copy_(fresh)
        elif how == "data":
            module.weight.data = fresh
        else:
            module.weight = torch.nn.Parameter(fresh)
    for turn in range(1, 3):
        check(sampler, model, turn)


@pytest.mark.parametrize("where", ["refresh", "addresses", "rotations"])
def test_interrupted_refresh_is_repeated(where, tokenizer, monkeypatch):
    torch.manual_seed(0)
    model = make_model("llama")
    sampler = as_on_a_gpu(model, tokenizer, monkeypatch)
    check(sampler, model, 0)
    decoder, moves = sampler.llama_decoder, sampler.llama_decoder.graph_epoch
    names = {"refresh": "refresh", "addresses": "addresses", "rotations": "make_rope"}
    whole = getattr(LlamaForward, names[where])

    def interrupted(self, *arguments):
        if where != "refresh":
            whole(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LlamaForward, names[where], interrupted)
        with pytest.raises(KeyboardInterrupt):
            if where == "rotations":
                decoder.extend_rope(1000)
            else:
                model.model.embed_tokens.weight.data = model.model.embed_tokens.weight.data * 1.3
                decoder.refresh()
    decoder.extend_rope(1000)
    decoder.refresh()
    assert decoder.graph_epoch > moves and decoder.addresses == decoder.forward.addresses()
    check(sampler, model, 1)


def test_interrupted_weight_copy_is_not_used_after_weights_are_swapped_back(tokenizer, monkeypatch):
    """Swap in other weights, interrupt their copy, and swap the first weights back."""
    torch.manual_seed(0)
    model, refresh = make_model("llama"), LlamaForward.refresh
    sampler = as_on_a_gpu(model, tokenizer, monkeypatch)
    check(sampler, model, 0)
    weight = model.model.layers[0].self_attn.k_proj.weight
    first = weight.data

    def interrupted(self):
        refresh(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LlamaForward, "refresh", interrupted)
        weight.data = first * 2
        with pytest.raises(KeyboardInterrupt):
            sampler.llama_decoder.refresh()
    weight.data = first
    check(sampler, model, 1)


@pytest.mark.parametrize("again", [(4, 32), (2, 16)])
@pytest.mark.parametrize("by_head", [True, False])
@pytest.mark.parametrize("at", ["zeros", "view"])
def test_interrupted_resize_is_repeated(at, by_head, again, monkeypatch):
    cache = KeyValueCache(LlamaForward(make_model("llama")).shape, head_major=by_head)
    cache.resize(2, 16)
    with monkeypatch.context() as patch:
        where, what = (torch, "zeros") if at == "zeros" else (KeyValueCache, "view_slots")

        def fails(*arguments, **how):
            raise MemoryError

        patch.setattr(where, what, fails)
        with pytest.raises(MemoryError):
            cache.resize(4, 32)
    cache.resize(*again)
    assert len(cache.keys) == len(cache.values) == cache.shape.layers and (cache.slots, cache.capacity) == again
    assert all(x.shape[:2] == again for x in (*cache.keys, *cache.values))


def test_resize_to_the_same_size_keeps_the_storage():
    cache = KeyValueCache(LlamaForward(make_model("llama")).shape)
    cache.resize(2, 16)
    storage = [x.data_ptr() for x in (*cache.keys, *cache.values)]
    cache.resize(2, 16)
    assert [x.data_ptr() for x in (*cache.keys, *cache.values)] == storage


def test_no_decode_steps_beyond_max_tokens(tokenizer, monkeypatch):
    torch.manual_seed(0)
    steps, advance = [], LlamaDecodeBatch.decode
    monkeypatch.setattr(
        LlamaDecodeBatch, "decode", lambda self, noise, *rest: steps.append(noise.shape[1]) or advance(self, noise, *rest)
    )
    sampler = as_on_a_gpu(make_model("llama"), tokenizer, monkeypatch)
    limits = [3, 7]
    found = sampler.sample([Request(PROMPT + i, seed=i, max_tokens=n) for i, n in enumerate(limits)], Sampling())
    assert [len(completion.tokens) for completion in found] == limits
    assert steps == [4, 2], "the first of seven tokens is sampled by the prefill"


def test_staging_buffer_is_not_overwritten_before_its_copy_finishes():
    fixed = PrefillBuffers(PrefillShape.fit(np.array([5])), torch.device("cpu"))
    fixed.fill([np.arange(1, 6)], np.arange(5), 99)
    seen = []
    fixed.copy_event = SimpleNamespace(synchronize=lambda: seen.append(fixed.staging_parts[0][:5].tolist()))
    fixed.fill([np.arange(11, 16)], np.arange(5), 99)
    assert seen == [[1, 2, 3, 4, 5]] and fixed.tokens_N[:5].tolist() == [11, 12, 13, 14, 15]


def test_extending_rope_invalidates_graphs():
    decoder = LlamaDecoder(make_model("llama"), fixed_shapes=True)
    moves = decoder.graph_epoch
    decoder.extend_rope(100)
    assert decoder.graph_epoch == moves
    decoder.extend_rope(decoder.forward.rope_length + 1)
    assert decoder.graph_epoch > moves


def test_interrupted_resize_drops_stale_graphs(tokenizer, monkeypatch):
    torch.manual_seed(0)
    model = make_model("llama")
    sampler = as_on_a_gpu(model, tokenizer, monkeypatch)
    check(sampler, model, 0)
    batch = sampler.llama_decoder.spare
    assert len(batch.graphs)
    before, grown = batch.cache.addresses(), DecodeState.grow

    def interrupted(self, slots):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, torch.inference_mode():
        patch.setattr(DecodeState, "grow", interrupted)
        with pytest.raises(KeyboardInterrupt):
            batch.resize(2, 1000, 0)
    assert batch.cache.addresses() != before and len(batch.graphs) and DecodeState.grow is grown
    with torch.inference_mode():
        batch.resize(2, 1000, 0)
    assert not len(batch.graphs)
