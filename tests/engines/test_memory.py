"""Retries with a smaller budget after running out of memory give the same result. The errors are simulated."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from tacit.core.credit import Batch
from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.engines.local import engine as engine_module
from tacit.engines.local.fast.cuda_graphs import CudaGraphs
from tacit.engines.local.fast.kv_cache import AttentionShape, KeyValueCache
from tacit.engines.local.fast.llama_decoding import LlamaDecodeBatch
from tacit.engines.local.memory import AdaptiveBudget, empty_cache, free_bytes, is_nearly_full
from tacit.losses.surrogates import Imitation

pytestmark = pytest.mark.filterwarnings("ignore:out of GPU memory")

CPU = torch.device("cpu")


def nothing() -> None:
    pass


def no_room(size: int) -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError(f"{size} do not fit")


def test_budget_is_halved_with_a_cleanup_until_the_work_fits():
    budget, tried, rooms = AdaptiveBudget(1000, CPU), [], []

    def work(budget: int) -> str:
        tried.append(budget)
        if budget > 300:
            raise no_room(budget)
        return "done"

    with pytest.warns(UserWarning, match="out of GPU memory in a test of 1000; retrying with 500"):
        assert budget.run(work, 10, "a test of {}", clean_up=lambda: rooms.append(len(tried))) == "done"
    assert tried == [1000, 500, 250] and rooms == [1, 2] and (budget.current, budget.limit) == (250, 1000)


def test_out_of_memory_is_raised_at_the_minimum_budget():
    tried = []

    def work(budget: int) -> None:
        tried.append(budget)
        raise no_room(budget)

    with pytest.raises(torch.OutOfMemoryError):
        AdaptiveBudget(100, CPU).run(work, 30, "a test")
    assert tried == [100, 50, 30]


def test_tensors_of_a_failed_attempt_are_freed_before_cleanup():
    kept: list[weakref.ref] = []

    def work(budget: int) -> None:
        activations = torch.zeros(8)
        kept.append(weakref.ref(activations))
        if budget > 1:
            raise no_room(budget)

    def free_memory() -> None:
        assert kept[-1]() is None

    AdaptiveBudget(2, CPU).run(work, 1, "a test", clean_up=free_memory)
    assert len(kept) == 2


def test_failed_attempt_is_freed_when_its_error_references_its_own_frame():
    """A compiler keeps the error that it raises again. That reference cycle would hold the tensors until garbage collection."""
    budget, attempts = AdaptiveBudget(8, torch.device("cpu")), []

    def attempt(size: int) -> int:
        if attempts:
            assert attempts[-1]() is None, "tensors of the previous attempt were not freed"
        activations = torch.zeros(size)
        attempts.append(weakref.ref(activations))
        try:
            if size > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
        except torch.OutOfMemoryError as error:
            kept = error
        else:
            return size
        raise kept

    gc.disable()
    try:
        with pytest.warns(UserWarning, match="out of GPU memory"):
            assert budget.run(attempt, 1, "an attempt of {}") == 2
    finally:
        gc.enable()
    assert len(attempts) == 3


def test_cpu_is_never_nearly_full_and_frees_no_cuda_cache(monkeypatch):
    def refuse(*_):
        raise AssertionError("this asks a GPU")

    monkeypatch.setattr(torch.cuda, "empty_cache", refuse)
    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    empty_cache(torch.device("cpu"))
    assert not is_nearly_full(torch.device("cpu"))


@pytest.mark.parametrize(("free", "crowded"), [(20, True), (25, False), (90, False)])
def test_gpu_with_little_free_memory_is_nearly_full(monkeypatch, free, crowded):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 100))
    assert is_nearly_full(torch.device("cuda")) is crowded


@dataclass
class Short:
    """Imitation that runs out of memory on micro-batches of more than `most` tokens. The first `spared` calls never fail."""

    most: int
    spared: int = 0
    needs: frozenset[str] = frozenset()
    seen: list[int] = field(default_factory=list)

    def __call__(self, view):
        loss, metrics = Imitation()(view)
        self.seen.append(len(view.logprobs_T))
        if len(view.logprobs_T) > self.most and len(self.seen) > self.spared:
            raise no_room(len(view.logprobs_T))
        return loss, metrics


def weights(policy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.engine.model.hf.named_parameters()}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}, {"dtype": "bfloat16"}])
def test_update_retried_after_out_of_memory_gives_the_same_weights(make_policy, rows, settings):
    batch = Batch.imitation(*rows)
    whole, finer = make_policy(token_budget=80, **settings), make_policy(token_budget=40, **settings)
    short = make_policy(token_budget=80, **settings)
    before = weights(short)
    loss = Short(most=14, spared=1)  # the first micro-batch leaves a gradient behind, the second does not fit
    for policy, term in ((whole, Imitation()), (finer, Imitation()), (short, loss)):
        metrics = policy.update(batch, [term], 1e-2)
        assert ("token_budget" in metrics) == (policy is short)
    assert metrics["token_budget"] == short.engine.update_budget.current == 40
    assert max(loss.seen[:2]) > 14 and len(loss.seen) > 3
    exactly, nearly, moved = weights(finer), weights(whole), weights(short)
    assert all(torch.equal(moved[name], exactly[name]) for name in moved)
    if "dtype" not in settings:  # a rounded gradient near zero may have either sign, and Adam's first step is its sign
        assert all(torch.allclose(moved[name], nearly[name], atol=1e-4) for name in moved)
    assert any(not torch.equal(moved[name], before[name]) for name in moved)
    assert all(p.grad is None for p in short.engine.model.hf.parameters())


def test_later_updates_start_with_the_reduced_budget(make_policy, rows):
    policy, batch = make_policy(token_budget=80), Batch.imitation(*rows)
    policy.update(batch, [Short(most=14)], 1e-2)
    after = Short(most=14)
    assert policy.update(batch, [after], 1e-2)["token_budget"] == 40
    assert max(after.seen) <= 14


def test_out_of_memory_in_an_update_releases_the_samplers_cache(make_policy, rows):
    policy = make_policy(token_budget=80)
    request = [Request(np.arange(5, 15), seed=3)]
    before = policy.sample(request, Sampling(max_tokens=6))
    sampler = policy.engine.sampler
    assert sampler is not None and sampler.llama_decoder is not None
    policy.update(Batch.imitation(*rows), [Short(most=14)], 0.0)
    assert sampler.llama_decoder is None
    assert policy.sample(request, Sampling(max_tokens=6))[0].tokens.tolist() == before[0].tokens.tolist()


def test_update_that_never_fits_is_refused_and_changes_no_weights(make_policy, rows):
    policy = make_policy(token_budget=80)
    before = policy.digest()
    with pytest.raises(TacitError, match=r"out of GPU memory in an update, even with a single row .* 37 tokens"):
        policy.update(Batch.imitation(*rows), [Short(most=0)], 1e-2)
    assert policy.digest() == before and all(p.grad is None for p in policy.engine.model.hf.parameters())


def out_of_memory_above(most: int, work: Callable, size: Callable) -> Callable:
    def tried(*arguments):
        if size(*arguments) > most:
            raise no_room(size(*arguments))
        return work(*arguments)

    return tried


def test_scores_retried_after_out_of_memory_are_the_same(make_policy, rows, monkeypatch):
    prompts, completions = rows
    whole, short = make_policy(token_budget=80), make_policy(token_budget=80)
    model = short.engine.model
    monkeypatch.setattr(
        model, "forward_hidden", out_of_memory_above(50, model.forward_hidden, lambda packed: packed.num_tokens)
    )
    deep = out_of_memory_above(50, model.all_hidden_states, lambda ids: ids.numel())
    monkeypatch.setattr(model, "all_hidden_states", deep)
    for ours, theirs in zip(short.logprobs(prompts, completions), whole.logprobs(prompts, completions), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(short.hidden_states(prompts, 1), whole.hidden_states(prompts, 1), atol=1e-5)
    ours, theirs = short.distributions(prompts, completions, 3), whole.distributions(prompts, completions, 3)
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(ours, theirs, strict=True))
    monkeypatch.setattr(model, "forward_hidden", out_of_memory_above(0, model.forward_hidden, lambda packed: packed.num_tokens))
    with pytest.raises(TacitError, match="out of GPU memory in a scoring pass"):
        short.logprobs(prompts, completions)


def test_completions_retried_after_out_of_memory_are_the_same(make_policy, monkeypatch):
    requests = [Request(np.arange(3, 6 + n % 4), seed=n) for n in range(11)]
    sampling = Sampling(max_tokens=8)
    expected = make_policy().sample(requests, sampling)
    policy = make_policy()
    join, advance = LlamaDecodeBatch.prefill, LlamaDecodeBatch.decode
    # Ten prompts fit in a prefill, and three rows in a decode step.
    monkeypatch.setattr(LlamaDecodeBatch, "prefill", out_of_memory_above(10, join, lambda batch, new, *_: len(new.slots_N)))
    monkeypatch.setattr(LlamaDecodeBatch, "decode", out_of_memory_above(3, advance, lambda batch, noise, *_: len(noise)))
    found = policy.sample(requests, sampling)
    assert [c.tokens.tolist() for c in found] == [c.tokens.tolist() for c in expected]
    sampler = policy.engine.sampler
    assert sampler.slot_budget.current == 2  # halved from 11 to 5 to 2
    monkeypatch.setattr(LlamaDecodeBatch, "decode", out_of_memory_above(0, advance, lambda batch, noise, *_: len(noise)))
    with pytest.raises(TacitError, match="out of GPU memory while sampling one completion at a time, of 3 prompt tokens"):
        policy.sample(requests, sampling)


def test_small_last_batch_does_not_lower_the_slot_budget(make_policy):
    policy = make_policy(max_batch=4)
    policy.sample([Request(np.arange(3, 9), seed=n) for n in range(6)], Sampling(max_tokens=4))
    assert policy.engine.sampler.slot_budget.current == 4


def test_cuda_cache_is_emptied_once_per_phase_when_nearly_full(make_policy, rows, monkeypatch):
    policy, devices = make_policy(), []
    monkeypatch.setattr(engine_module, "is_nearly_full", lambda device: True)
    monkeypatch.setattr(engine_module, "empty_cache", devices.append)
    batch, request = Batch.imitation(*rows), [Request(np.arange(3, 9))]
    for _ in range(3):
        policy.update(batch, [Imitation()], 0.0)
    assert len(devices) == 1
    for _ in range(3):
        policy.sample(request, Sampling(max_tokens=2))
    assert len(devices) == 2
    monkeypatch.setattr(engine_module, "is_nearly_full", lambda device: False)
    policy.update(batch, [Imitation()], 0.0)
    assert len(devices) == 2


def test_growing_kv_cache_frees_the_old_one_first(monkeypatch):
    cache = KeyValueCache(AttentionShape(2, 1, 2, 4, 0.5, torch.float32, torch.device("cpu")))
    cache.resize(2, 8)
    views = [weakref.ref(tensor) for tensor in (*cache.keys, *cache.values)]
    zeros = torch.zeros

    def checked(*arguments, **options):
        gc.collect()
        assert all(view() is None for view in views)
        return zeros(*arguments, **options)

    monkeypatch.setattr(torch, "zeros", checked)
    cache.resize(4, 16)
    assert len(views) == 4 and cache.capacity == 16


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_unallocated_memory_in_cuda_graph_pools_is_not_counted_as_free(monkeypatch, device):
    def segment(on, total, allocated, pool):
        return {"device": on, "total_size": total, "allocated_size": allocated, "segment_pool_id": pool}

    segments = [segment(1, 100, 60, (0, 0)), segment(1, 30, 5, (0, 7)), segment(1, 8, 0, (0, 9)), segment(0, 50, 0, (0, 7))]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 138)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 65)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    assert free_bytes(torch.device(device)) == 1000 + 40


class FakeGPU:
    """The part of torch.cuda that captures a step. `fails` maps the number of a capture to the error it raises."""

    def __init__(self, monkeypatch, fails):
        self.streams, self.given_back, self.recorded, self._fails = [], 0, 0, fails
        self.ours, aside = self.Stream(), self.Stream()
        self.current = self.ours
        monkeypatch.setattr("tacit.engines.local.fast.cuda_graphs.get_capture_stream", lambda device: aside)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(self, "current", stream))
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext(self.streams.append(stream)))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", self.Graph)
        monkeypatch.setattr(torch.cuda, "graph", self.record)
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty)

    class Stream:
        waits_for = None

        def wait_stream(self, other):
            self.waits_for = other

    class Graph:
        def replay(self):
            pass

        def pool(self):
            return "pool"

    def record(self, graph, pool, stream, capture_error_mode):
        self.recorded += 1
        self.current = stream  # torch leaves it like this if the end of a capture raises
        if self.recorded in self._fails:
            raise self._fails[self.recorded]
        return nullcontext()

    def empty(self):
        self.given_back += 1


def test_graph_warmups_share_one_stream_and_clearing_graphs_frees_memory(monkeypatch):
    gpu, graphs = FakeGPU(monkeypatch, {}), CudaGraphs(enabled=True)
    graphs.clear()
    assert gpu.given_back == 0
    for key in "abca":
        graphs.run(key, nothing, lambda: nothing)
    assert len(gpu.streams) == 3 and len(set(map(id, gpu.streams))) == 1 and gpu.streams[0] is not gpu.ours
    graphs.clear()
    assert len(graphs) == 0 and gpu.given_back == 1


def test_failed_warmup_is_synchronized_with_the_current_stream(monkeypatch):
    """It may still be writing to the KV cache that later work reads."""
    gpu, graphs = FakeGPU(monkeypatch, {}), CudaGraphs(enabled=True)

    def step():
        raise no_room(1)

    with pytest.raises(torch.OutOfMemoryError):
        graphs.run("a", step, lambda: nothing)
    assert gpu.ours.waits_for is gpu.streams[0]


def test_out_of_memory_during_capture_does_not_disable_cuda_graphs(monkeypatch):
    gpu = FakeGPU(monkeypatch, {2: no_room(1), 4: RuntimeError("this device cannot")})
    graphs = CudaGraphs(enabled=True)
    graphs.run("a", nothing, lambda: nothing)
    with pytest.raises(torch.OutOfMemoryError):
        graphs.run("b", nothing, lambda: nothing)
    assert gpu.current is gpu.ours, "the current stream is restored after a failed capture"
    graphs.run("b", nothing, lambda: nothing)
    assert graphs.enabled and len(graphs) == 2
    with pytest.warns(UserWarning, match="CUDA graphs are off"):
        graphs.run("c", nothing, lambda: nothing)
    assert not graphs.enabled and gpu.current is gpu.ours
