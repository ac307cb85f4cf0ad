"""CUDA graphs of prefills: padding does not change results and is never read."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from random_models import Recording, as_on_a_gpu, make_model, with_adapter

from tacit.core.protocols import Request, Sampling
from tacit.core.types import Completion, HiddenState
from tacit.engines.local.fast import cuda_graphs
from tacit.engines.local.fast.cuda_graphs import MAX_GRAPHS, CudaGraphs, PrefillBuffers, PrefillGraphs, PrefillShape
from tacit.engines.local.fast.kv_cache import KeyValueCache
from tacit.engines.local.fast.llama import LlamaForward, PackedPrompts
from tacit.engines.local.scheduler import LocalSampler


def drawn(rng: np.random.Generator, *lengths: int) -> list[np.ndarray]:
    return [rng.integers(0, 256, length) for length in lengths]


@pytest.mark.parametrize("weights, share, most", [(0, 4, 40), (10**9, 8, 60)])
def test_padded_shapes_are_few_with_little_padding(weights, share, most):
    rng, sizes = np.random.default_rng(0), set()
    for _ in range(500):
        lengths_U = rng.integers(300, 700, rng.integers(2, 28))
        size = PrefillShape.fit(lengths_U, weights)
        filling = cuda_graphs.padding_lengths(size.tokens, size.prompts, lengths_U)
        assert lengths_U.sum() + filling.sum() == size.tokens and len(lengths_U) + len(filling) == size.prompts
        assert filling.min() >= 1 and max(filling.max(), lengths_U.max()) <= size.longest
        assert filling.sum() <= lengths_U.sum() / share + size.prompts
        sizes.add(size)
    assert len(sizes) < most
    assert PrefillShape.fit(np.array([1])).tokens >= 128


def test_padding_may_be_longer_than_the_rope_table():
    forward, device = LlamaForward(make_model("llama")), torch.device("cpu")
    prompts = drawn(np.random.default_rng(0), *[30] * 127)
    fixed = PrefillBuffers(PrefillShape.fit(np.array([30] * 127)), device)
    filling = fixed.shape.tokens - 30 * 127
    assert filling > forward.rope_length, "the padding must be longer than the RoPE table"
    fixed.fill(prompts, np.arange(30 * 127), 5000)
    with torch.inference_mode():
        found, _ = forward.prefill_varlen(fixed.as_prompts(), None, lambda *_: None)
        expected, _ = forward.prefill_varlen(PackedPrompts.pack(prompts, device), None, lambda *_: None)
    torch.testing.assert_close(found[:127], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("family", ["llama", "llama-untied-bias", "qwen2", "qwen3", "adapted"])
def test_padding_does_not_change_results(family):
    torch.manual_seed(0)
    model = with_adapter(make_model("llama")) if family == "adapted" else make_model(family)
    forward, device, rng = LlamaForward(model), torch.device("cpu"), np.random.default_rng(0)
    forward.extend_rope(256)
    fixed = None
    for lengths in ((17, 3, 40), (40, 2, 1, 30, 9), (60,), (5, 6, 7, 8, 9, 10, 11)):
        prompts = drawn(rng, *lengths)
        if fixed is None:
            fixed = PrefillBuffers(PrefillShape.fit(np.array(lengths)), device)
        total = sum(lengths)
        fixed.fill(prompts, np.arange(total), 999)
        assert fixed.kv_index_N.tolist() == [*range(total), *[999] * (fixed.shape.tokens - total)]
        pooled = [HiddenState(layer, how) for layer in (1, len(forward)) for how in ("last", "mean", "attention")]
        for hidden in (None, HiddenState(0), HiddenState(0, "mean"), *pooled):
            found, kept = [], []
            for packed in (PackedPrompts.pack(prompts, device), fixed.as_prompts()):
                keys: list[torch.Tensor] = []
                with torch.inference_mode():
                    found.append(forward.prefill_varlen(packed, hidden, lambda _, k, v, keys=keys: keys.extend((k, v))))
                kept.append(keys)
            for ours, theirs in zip(*found, strict=True):
                if theirs is not None:
                    torch.testing.assert_close(theirs[: len(lengths)], ours, atol=1e-5, rtol=1e-4)
                    assert torch.isfinite(theirs).all()
            for ours, theirs in zip(*kept, strict=True):
                torch.testing.assert_close(theirs[:total], ours, atol=1e-5, rtol=1e-4)


def make_sampler(model, tokenizer, monkeypatch, **options) -> LocalSampler:
    """As on a GPU with varlen prefill and graphs."""
    return as_on_a_gpu(model, tokenizer, monkeypatch, varlen=True, **options)


LINES = 6


def make_lines(turns: int) -> list[list[Request]]:
    """Chains of requests; the last one repeats the first prompt."""
    rng = np.random.default_rng(5)
    lines = [
        [Request(p, seed=100 * i + t, max_tokens=4 + (i + t) % 9) for t, p in enumerate(drawn(rng, *turns * [12]))]
        for i in range(LINES)
    ]
    again = lines[0][0]
    return [*lines, [Request(again.prompt, seed=1, max_tokens=again.max_tokens)]]


def play(sampler: LocalSampler, lines: list[list[Request]], scheduler=None) -> dict[tuple[int, int], Completion]:
    scheduler = scheduler or sampler.open_scheduler(Sampling(temperature=0.9), hidden=HiddenState(1))
    request_ids, found = {scheduler.submit(line[0]): (i, 0) for i, line in enumerate(lines)}, {}
    while finished := scheduler.wait():
        for request_id, completion in finished:
            i, turn = request_ids.pop(request_id)
            found[i, turn] = completion
            if turn + 1 < len(lines[i]):
                request_ids[scheduler.submit(lines[i][turn + 1])] = (i, turn + 1)
    assert not request_ids
    return found


def check_as_alone(model, tokenizer, lines, found) -> None:
    alone = LocalSampler(model, tokenizer, "cpu")
    for (i, turn), completion in found.items():
        (expected,) = alone.sample([lines[i][turn]], Sampling(temperature=0.9), hidden=HiddenState(1))
        assert completion.tokens.tolist() == expected.tokens.tolist()
        np.testing.assert_allclose(completion.logprobs, expected.logprobs, atol=1e-4)
        np.testing.assert_allclose(completion.hidden, expected.hidden, atol=1e-4)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("poisoned", [False, True])
@pytest.mark.parametrize("adapted", [False, True])
def test_graphs_sample_the_same_and_padding_is_not_read(adapted, poisoned, tokenizer, monkeypatch):
    torch.manual_seed(0)
    model = with_adapter(make_model("llama")) if adapted else make_model("llama")
    sampler, recorded, filled = make_sampler(model, tokenizer, monkeypatch), [], []

    def record(self, step):
        step()
        recorded.append(step)
        return Recording(step)

    monkeypatch.setattr(CudaGraphs, "capture", record)
    fill, put = PrefillBuffers.fill, KeyValueCache.store
    monkeypatch.setattr(PrefillBuffers, "fill", lambda self, *arguments: filled.append(arguments[2]) or fill(self, *arguments))

    def poison(self, slots_M, taken_M, layer, keys_NHD, values_NHD):
        if filled:
            bad = (slots_M == filled[-1])[:, None, None]
            keys_NHD, values_NHD = (x.masked_fill(bad, float("nan")) for x in (keys_NHD, values_NHD))
        put(self, slots_M, taken_M, layer, keys_NHD, values_NHD)

    if poisoned:
        monkeypatch.setattr(KeyValueCache, "store", poison)
    lines = make_lines(6)
    scheduler = sampler.open_scheduler(Sampling(temperature=0.9), hidden=HiddenState(1))
    found = play(sampler, lines, scheduler)
    check_as_alone(model, tokenizer, lines, found)
    assert len(filled) > len(scheduler.batch.prefill_graphs) > 0, "no graph was replayed"


def test_prefill_without_graphs_if_capture_fails(tokenizer, monkeypatch):
    model = make_model("llama")
    sampler, filled, fill = make_sampler(model, tokenizer, monkeypatch), [], PrefillBuffers.fill
    monkeypatch.setattr(PrefillBuffers, "fill", lambda self, *arguments: filled.append(1) or fill(self, *arguments))

    def record(self, step):
        step()
        if step.__name__ != "prefill":
            return Recording(step)
        warnings.warn("sampling goes on without CUDA graphs", stacklevel=2)
        return None

    monkeypatch.setattr(CudaGraphs, "capture", record)
    lines, scheduler = make_lines(6), sampler.open_scheduler(Sampling(temperature=0.9), hidden=HiddenState(1))
    with pytest.warns(UserWarning, match="without CUDA graphs") as warned:
        found = play(sampler, lines, scheduler)
    check_as_alone(model, tokenizer, lines, found)
    assert len(warned) == len(filled) == 1 and not scheduler.batch.prefill_graphs.buffers
    assert scheduler.batch.graphs.enabled, "decode steps are still captured"


def test_oom_during_capture_costs_no_slots(tokenizer, monkeypatch, recwarn):
    model = make_model("llama")
    sampler, tried = make_sampler(model, tokenizer, monkeypatch), []

    def record(self, step):
        if step.__name__ != "prefill":
            step()
            return Recording(step)
        tried.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(CudaGraphs, "capture", record)
    lines, scheduler = make_lines(6), sampler.open_scheduler(Sampling(temperature=0.9), hidden=HiddenState(1))
    found = play(sampler, lines, scheduler)
    check_as_alone(model, tokenizer, lines, found)
    assert sampler.slot_budget.current == sampler.slot_budget.limit and scheduler.batch.graphs.enabled
    assert len(tried) == 1 and not scheduler.batch.prefill_graphs.buffers, "the capture is not repeated"
    assert ["out of GPU memory" in str(warning.message) for warning in recwarn] == [True]


def test_deterministic_mode_uses_no_graphs(tokenizer, monkeypatch):
    model, filled, fill = make_model("llama"), [], PrefillBuffers.fill
    monkeypatch.setattr(PrefillBuffers, "fill", lambda self, *arguments: filled.append(1) or fill(self, *arguments))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    play(make_sampler(model, tokenizer, monkeypatch), make_lines(6))
    assert not filled
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    play(make_sampler(model, tokenizer, monkeypatch), make_lines(6))
    assert filled


def test_graphs_are_bounded_and_dropped_when_stale(tokenizer, monkeypatch):
    model, most = make_model("llama"), []
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 2)
    sampler, run = make_sampler(model, tokenizer, monkeypatch), PrefillGraphs.run

    def watched(self, *arguments):
        found = run(self, *arguments)
        most.append((len(self), len(self.buffers)))
        return found

    monkeypatch.setattr(PrefillGraphs, "run", watched)
    rng = np.random.default_rng(2)
    scheduler = sampler.open_scheduler(Sampling(), hidden=None)
    for _ in range(3):
        for length in (50, 50, 40, 40, 30, 30, 20, 20, 20):
            for prompt in drawn(rng, *4 * [length]):
                scheduler.submit(Request(prompt, max_tokens=2))
            while scheduler.wait():
                pass
    assert max(most) == (2, 2) and len(set(most)) > 2
    batch = scheduler.batch
    assert len(batch.prefill_graphs) > 0
    sampler.llama_decoder.graph_epoch += 1
    batch.drop_stale_graphs()
    assert len(batch.prefill_graphs) == len(batch.prefill_graphs.buffers) == 0
    assert MAX_GRAPHS > 2


def test_store_is_valid_for_any_slots_and_capacity(monkeypatch):
    """A graph stores an address and a size, and reads the indices."""
    cache = KeyValueCache(LlamaForward(make_model("llama")).shape, head_major=False)
    written, copy = [], torch.Tensor.index_copy_
    monkeypatch.setattr(
        torch.Tensor,
        "index_copy_",
        lambda self, *given: written.append((self.data_ptr(), self.shape)) or copy(self, *given),
    )
    heads, dim = cache.shape.kv_heads, cache.shape.head_dim
    for width, capacity in ((4, 16), (2, 32), (3, 8)):
        cache.resize(width, capacity)
        keys, values = torch.randn(2, 5, heads, dim)
        cache.store(torch.arange(5) + capacity, None, 1, keys, values)
        torch.testing.assert_close(cache.first_tokens(1, 2, 5)[0][1], keys)
        torch.testing.assert_close(cache.first_tokens(1, 2, 5)[1][1], values)
    assert written[:2] == written[2:4] == written[4:]
    assert len(set(written)) == 2


def test_large_prefills_are_not_captured(monkeypatch):
    forward = LlamaForward(make_model("llama"))
    cache = KeyValueCache(forward.shape)
    assert PrefillGraphs(enabled=False).run(forward, cache, [np.arange(3)], np.arange(3), 0, None) is None
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPH_WORK", 10 * forward.weights_per_layer)
    runs = PrefillGraphs(enabled=True)
    assert runs.run(forward, cache, [np.arange(11)], np.arange(11), 0, None) is None and not runs.seen
    assert runs.run(forward, cache, [np.arange(10)], np.arange(10), 0, None) is None and runs.seen
