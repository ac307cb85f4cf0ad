"""Several runs on one simulated GPU: budgets grow again, runs wait for other processes, out-of-memory errors are recognized."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tacit.core.credit import Batch
from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.engines.local import engine as engine_module
from tacit.engines.local import memory, update
from tacit.engines.local.fast import layers
from tacit.engines.local.fast.attention import has_flash_attention
from tacit.engines.local.fast.cuda_graphs import CudaGraphs
from tacit.engines.local.fast.kernels import capability_probe
from tacit.engines.local.fast.llama_decoding import LlamaDecodeBatch
from tacit.engines.local.memory import GIB, WAITS_S, AdaptiveBudget, is_fragmented, is_out_of_memory, retry_on_oom
from tacit.engines.local.settings import EngineSettings
from tacit.losses.surrogates import Imitation

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"


class Card:
    """A GPU of 100 GiB, of which this process can use `room`. `later` is called during each wait."""

    def __init__(self, monkeypatch) -> None:
        self.room, self.slept = 100, []
        self.later: Callable[[], None] = lambda: None
        monkeypatch.setattr(memory, "available_and_total", lambda device: (self.room * GIB, 100 * GIB))
        monkeypatch.setattr(memory.time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.later()


@pytest.fixture
def card(monkeypatch) -> Card:
    return Card(monkeypatch)


def nothing() -> None:
    pass


class Work:
    """Fits with a budget of up to `most`."""

    def __init__(self, most: int, error: Exception | None = None) -> None:
        self.most, self.tried = most, []
        self._error = error or torch.OutOfMemoryError("no room")

    def __call__(self, budget: int) -> int:
        self.tried.append(budget)
        if budget > self.most:
            raise self._error
        return budget


@pytest.mark.filterwarnings("ignore:out of GPU memory")
def test_lowered_budget_grows_again_only_when_memory_is_freed(card):
    budget, work = AdaptiveBudget(100, CPU), Work(20)
    card.room = 10
    fit = lambda: budget.run(work, 1, "a test of {}")  # noqa: E731
    assert [fit() for _ in range(3)] == [12, 12, 12] and work.tried == [100, 50, 25, 12, 12, 12]
    card.room, work.tried = 12, []
    assert fit() == 12 and work.tried == [12]  # hardly more free memory
    card.room = 40
    assert fit() == 12 and work.tried == [12, 24, 12]  # still too little memory
    assert fit() == 12 and work.tried == [12, 24, 12, 12]  # the failed attempt is not repeated
    card.room, work.most = 90, 1000
    assert [fit() for _ in range(5)] == [24, 48, 96, 100, 100]


@pytest.mark.filterwarnings("ignore:out of GPU memory")
def test_small_work_bounds_an_attempt_but_not_the_budget(card):
    budget, card.room = AdaptiveBudget(64, CPU), 50
    assert budget.run(Work(64), 1, "a test of {}", maximum=3) == 3 and budget.current == 64
    assert budget.run(Work(2), 1, "a test of {}", maximum=10) == 2 and budget.current == 2
    card.room = 100
    assert budget.run(Work(64), 1, "a test of {}", maximum=3) == 3 and budget.current == 3


def test_memory_held_by_others_is_waited_for_with_one_warning(card):
    card.room, rooms, work = 10, [], Work(0)

    def later() -> None:
        work.most = 5 if len(card.slept) == 3 else 0

    card.later = later
    with pytest.warns(UserWarning) as caught:
        assert AdaptiveBudget(5, CPU).run(work, 5, "an update of {}", clean_up=lambda: rooms.append(1)) == 5
    assert card.slept == [2.0, 4.0, 8.0] and len(rooms) == 3
    (message,) = [str(warning.message) for warning in caught]
    assert message == (
        "out of GPU memory in an update of 5: other processes hold 90.0 of this GPU's 100.0 GiB; waiting for them up to 600 s"
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:out of GPU memory")
def test_budget_reaches_its_minimum_before_waiting_up_to_ten_minutes(card):
    card.room, work = 10, Work(0)
    with pytest.raises(torch.OutOfMemoryError):
        AdaptiveBudget(40, CPU).run(work, 10, "a test of {}")
    assert work.tried == [40, 20, 10, *len(WAITS_S) * [10]] and card.slept == list(WAITS_S) and sum(WAITS_S) == 600


@pytest.mark.parametrize("room", [100, 80])
def test_no_waiting_if_other_processes_hold_little_memory(card, room):
    card.room = room
    with pytest.raises(torch.OutOfMemoryError):
        AdaptiveBudget(1, CPU).run(Work(0), 1, "a test of {}")
    assert not card.slept


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB"),
        RuntimeError(CUBLAS),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("NCCL error: unhandled cuda error. Last error:\nCuda failure 2 'out of memory'"),
    ],
)
def test_all_out_of_memory_errors_are_recognized(error, card):
    assert is_out_of_memory(error)
    with pytest.raises(torch.OutOfMemoryError):
        AdaptiveBudget(1, CPU).run(Work(0, error), 1, "a test of {}")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: 9 bytes"),
        ValueError("CUDA out of memory"),
    ],
)
def test_other_errors_are_not_treated_as_out_of_memory(error, card):
    assert not is_out_of_memory(error)
    work = Work(0, error)
    with pytest.raises(type(error)) as raised:
        AdaptiveBudget(8, CPU).run(work, 1, "a test of {}")
    assert raised.value is error and work.tried == [8] and not card.slept


def test_cublas_error_on_a_broken_device_is_not_out_of_memory(monkeypatch):
    def broken() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    error = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", nothing)
    assert is_out_of_memory(error)
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    assert not is_out_of_memory(error)


def test_error_caused_by_out_of_memory_is_out_of_memory(monkeypatch):
    """Ending a failed capture raises another error, and only that one arrives."""

    class Recording:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    class Stream:
        def wait_stream(self, other: Stream) -> None:
            pass

    monkeypatch.setattr("tacit.engines.local.fast.cuda_graphs.get_capture_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    for name, fake in (("current_stream", Stream), ("CUDAGraph", object)):
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: warnings.catch_warnings())
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: Recording())
    steps = []

    def step() -> None:
        steps.append(1)
        if len(steps) == 2:  # the first call is the warm-up
            raise RuntimeError(CUBLAS)

    graphs = CudaGraphs(enabled=True)
    with pytest.raises(RuntimeError, match="during capture") as raised:
        graphs.run("a", step, lambda: nothing)
    assert is_out_of_memory(raised.value) and graphs.enabled


def test_out_of_memory_in_a_probe_is_raised_and_not_cached(monkeypatch):
    def short(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no room")

    probe = capability_probe(has_flash_attention.__wrapped__)  # type: ignore[attr-defined]  # nothing is cached yet
    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", short)
        for _ in range(2):  # the result is not cached
            with pytest.raises(torch.OutOfMemoryError):
                probe(GPU, torch.bfloat16, 64)

    def cannot(piece: Callable) -> Callable:
        def compiled(*_: object) -> None:
            raise RuntimeError("Triton Error [CUDA]: out of memory")

        return compiled

    monkeypatch.setattr(torch, "compile", cannot)
    monkeypatch.setattr(layers.CompiledOp, "failed", False)  # an earlier test may have found no C compiler
    with pytest.raises(RuntimeError, match="out of memory"):
        layers.CompiledOp(layers.swiglu)(torch.zeros(2, 4))
    assert not layers.CompiledOp.failed


class ShortOf:
    """Imitation that fails on micro-batches with more tokens than the card has GiB of room."""

    needs: frozenset[str] = frozenset()

    def __init__(self, card: Card, error: Exception) -> None:
        self._card, self._error, self.seen = card, error, []

    def __call__(self, view):
        loss, metrics = Imitation()(view)
        self.seen.append(len(view.logprobs_T))
        if self.seen[-1] > self._card.room:
            raise self._error
        return loss, metrics


def weights(policy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.engine.model.hf.named_parameters()}


def a_batch() -> Batch:
    rng = np.random.default_rng(0)
    return Batch.imitation([rng.integers(2, 250, size=20) for _ in range(8)], [rng.integers(2, 250, size=5) for _ in range(8)])


@pytest.mark.filterwarnings("ignore:out of GPU memory")
def test_updates_are_planned_again_when_other_processes_free_memory(make_policy, card, monkeypatch):
    policy, free = make_policy(token_budget=500), make_policy(token_budget=500)
    plans, plan = [], update.measure_activation_bytes
    monkeypatch.setattr(update, "PROBE_TOKENS", 30)
    monkeypatch.setattr(update, "measure_activation_bytes", lambda *arguments: plans.append(1) or plan(*arguments))
    monkeypatch.setattr(update, "free_bytes", lambda device: 0 if card.room < 50 else 10**12)
    batch, card.room = a_batch(), 3
    assert [policy.update(batch, [Imitation()], 1e-2)["token_budget"] for _ in range(3)] == [30.0] * 3 and len(plans) == 1
    card.room = 90
    assert "token_budget" not in policy.update(batch, [Imitation()], 1e-2) and len(plans) == 2
    policy.update(batch, [Imitation()], 1e-2)
    assert len(plans) == 2 and policy.engine.update_budget.current == 500
    for _ in range(5):
        free.update(batch, [Imitation()], 1e-2)
    ours, theirs = weights(policy), weights(free)
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-3) for name in ours)


@pytest.mark.quick_cases(1)
@pytest.mark.filterwarnings("ignore:out of GPU memory")
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), RuntimeError(CUBLAS)])
def test_reduced_update_budget_is_planned_again_when_memory_is_free(make_policy, card, monkeypatch, error):
    policy, batch, loss = make_policy(token_budget=500), a_batch(), ShortOf(card, error)
    monkeypatch.setattr(update, "free_bytes", lambda device: 10**12)
    plans = []
    monkeypatch.setattr(update, "measure_activation_bytes", lambda *_: plans.append(1) or (0.0, 1.0))
    card.room = 12  # in completion tokens; the eight rows have 40
    assert policy.update(batch, [loss], 1e-2)["token_budget"] == 62 and max(loss.seen[:1]) == 40
    loss.seen.clear()
    assert policy.update(batch, [loss], 1e-2)["token_budget"] == 62 and max(loss.seen) <= 12 and len(plans) == 1
    card.room = 90
    loss.seen.clear()
    assert "token_budget" not in policy.update(batch, [loss], 1e-2)
    assert loss.seen == [40] and len(plans) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:out of GPU memory")
def test_waiting_update_holds_no_gradient_and_gives_the_same_weights(make_policy, card, monkeypatch):
    policy, other, batch = make_policy(token_budget=25), make_policy(token_budget=25), a_batch()
    loss = ShortOf(card, RuntimeError(CUBLAS))
    monkeypatch.setattr(update, "free_bytes", lambda device: 10**12)
    monkeypatch.setattr(update, "measure_activation_bytes", lambda *_: (0.0, 1.0))
    card.room = 4

    def later() -> None:
        assert all(p.grad is None for p in policy.engine.model.hf.parameters())
        card.room = 4 if len(card.slept) < 2 else 100

    card.later = later
    policy.update(batch, [loss], 1e-2)
    assert card.slept == [2.0, 4.0]
    card.room = 100
    other.update(batch, [Imitation()], 1e-2)
    ours, theirs = weights(policy), weights(other)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    card.room, card.later, card.slept = 4, nothing, []
    with pytest.raises(TacitError, match=r"out of GPU memory in an update, even with a single row .* 24 tokens"):
        policy.update(batch, [loss], 1e-2)
    assert card.slept == list(WAITS_S)


@pytest.mark.filterwarnings("ignore:out of GPU memory")
def test_scoring_and_sampling_budgets_recover_with_free_memory(make_policy, rows, card, monkeypatch):
    prompts, completions = rows
    policy, most = make_policy(token_budget=80, value_head=True), {"tokens": 50, "rows": 3}
    model, predicting, decode = policy.engine.model, policy.engine.model.forward_hidden, LlamaDecodeBatch.decode

    def predicting_few(packed):
        if packed.num_tokens > most["tokens"]:
            raise RuntimeError(CUBLAS)
        return predicting(packed)

    def decode_few(batch, noise, *rest):
        if len(noise) > most["rows"]:
            raise RuntimeError(CUBLAS)
        return decode(batch, noise, *rest)

    monkeypatch.setattr(model, "forward_hidden", predicting_few)
    monkeypatch.setattr(LlamaDecodeBatch, "decode", decode_few)
    requests = [Request(np.arange(3, 6 + n % 4), seed=n) for n in range(11)]
    card.room = 30
    expected = policy.logprobs(prompts, completions), policy.sample(requests, Sampling(max_tokens=4))
    policy.values(prompts)
    scoring, slots = policy.engine.scoring_budget, policy.engine.sampler.slot_budget
    assert (scoring.current, slots.current) == (40, 2)
    card.room, most["tokens"], most["rows"] = 100, 1000, 1000
    found = policy.logprobs(prompts, completions), policy.sample(requests, Sampling(max_tokens=4))
    assert scoring.current == 80 and slots.current > 2
    for ours, theirs in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert [c.tokens.tolist() for c in found[1]] == [c.tokens.tolist() for c in expected[1]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:out of GPU memory")
def test_indivisible_work_waits_for_memory(make_policy, card, monkeypatch):
    card.room, failed, load = 10, [], engine_module.LanguageModel

    def fails_at_first(*arguments, **options):
        if len(failed) < 3:
            failed.append(1)
            raise RuntimeError(CUBLAS)
        return load(*arguments, **options)

    monkeypatch.setattr(engine_module, "LanguageModel", fails_at_first)
    policy = make_policy()
    assert card.slept == [2.0, 4.0]
    failed.clear()
    policy.freeze_reference()
    assert card.slept == [2.0, 4.0] * 2
    card.room = 100
    with pytest.raises(TacitError, match="out of GPU memory in a test; use a smaller model"):
        retry_on_oom(lambda: Work(0)(1), CPU, "a test")


@pytest.mark.slow
def test_model_loading_waits_for_memory_before_it_is_refused(make_policy, card, tmp_path, monkeypatch):
    make_policy().engine.model.hf.save_pretrained(tmp_path)
    card.room, free = 10, {"bytes": 0}
    monkeypatch.setattr(memory, "free_bytes", lambda device: free["bytes"])
    monkeypatch.setattr(torch.cuda, "empty_cache", nothing)
    check = lambda: memory.check_memory(str(tmp_path), GPU, torch.bfloat16, EngineSettings(device="cpu"))  # noqa: E731
    with pytest.warns(UserWarning, match="in loading the model: other processes hold 90.0"), pytest.raises(TacitError):
        check()
    assert card.slept == list(WAITS_S)
    card.later = lambda: free.update(bytes=10**12)
    with pytest.warns(UserWarning, match="waiting for them"):
        check()
    assert len(card.slept) == len(WAITS_S) + 1


@pytest.mark.parametrize(("reserved", "peak", "pieces"), [(40, 10, True), (14, 10, False)])
def test_fragmented_cache_is_emptied_on_a_nearly_full_gpu(make_policy, monkeypatch, reserved, peak, pieces):
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak)
    assert is_fragmented(GPU) is pieces and not is_fragmented(CPU)
    policy, devices = make_policy(), []
    monkeypatch.setattr(engine_module, "is_fragmented", lambda device: is_fragmented(GPU))
    monkeypatch.setattr(engine_module, "is_nearly_full", lambda device: True)
    monkeypatch.setattr(engine_module, "empty_cache", devices.append)
    for _ in range(3):
        policy.update(a_batch(), [Imitation()], 0.0)
    assert len(devices) == (3 if pieces else 1)  # otherwise only at the first update
    monkeypatch.setattr(engine_module, "is_nearly_full", lambda device: False)
    policy.update(a_batch(), [Imitation()], 0.0)
    assert len(devices) == (3 if pieces else 1)


def test_preallocated_moments_equal_those_of_adamw(make_policy, monkeypatch):
    ours, theirs, batch = make_policy(value_head=True), make_policy(value_head=True), a_batch()
    ours.update(batch, [Imitation()], 1e-2)
    monkeypatch.setattr(type(theirs.engine.member("default").weights), "allocate_moments", lambda self: None)
    theirs.update(batch, [Imitation()], 1e-2)
    states = [policy.engine.member("default").weights.optimizer.state_dict()["state"] for policy in (ours, theirs)]
    assert states[0].keys() == states[1].keys() and states[0]
    for index, one in states[0].items():
        other = states[1][index]
        assert {k: (v.dtype, v.device) for k, v in one.items()} == {k: (v.dtype, v.device) for k, v in other.items()}
        assert all(torch.equal(one[name], other[name]) for name in one)
