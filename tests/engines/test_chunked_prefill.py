"""Chunked prefill inside decode steps: a completion is the one its request gets alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from random_models import as_on_a_gpu, make_model, plain_logprobs, with_adapter

from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling, Scheduler
from tacit.core.types import Completion, HiddenState
from tacit.engines.local.fast import chunked_prefill
from tacit.engines.local.fast.kv_cache import KeyValueCache
from tacit.engines.local.fast.llama_decoding import LlamaDecodeBatch, LlamaDecoder
from tacit.engines.local.scheduler import LocalSampler

pytestmark = pytest.mark.filterwarnings("ignore:out of GPU memory")

WARM = Sampling(temperature=0.9)
MOST_STEPS = chunked_prefill.max_prefill_steps
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(autouse=True)
def always_chunk(monkeypatch):
    """Use chunked prefill however short completions are."""
    monkeypatch.setattr(chunked_prefill, "max_prefill_steps", lambda written, rows: chunked_prefill.MAX_CHUNKED_STEPS)


def make_sampler(model, tokenizer, monkeypatch, **options) -> LocalSampler:
    """As on a GPU with kernels for chunked prefill."""
    sampler = as_on_a_gpu(model, tokenizer, monkeypatch, varlen=True, **options)
    assert sampler._llama.supports_chunked_prefill
    return sampler


@pytest.fixture
def chunk_schedules(monkeypatch) -> list[chunked_prefill.ChunkSchedule | None]:
    """All chunk schedules."""
    seen: list[chunked_prefill.ChunkSchedule | None] = []
    advance = LlamaDecodeBatch.decode

    def watched(self, noise, longest, sampling, look=None):
        seen.append(look)
        return advance(self, noise, longest, sampling, look)

    monkeypatch.setattr(LlamaDecodeBatch, "decode", watched)
    return seen


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = make_model("llama")
    made.config.max_position_embeddings = 1024
    return made


def make_lines(count: int, turns: int, seed: int = 0, most: int = 90) -> list[list[Request]]:
    """Lines of consecutive requests; prompts grow, and lengths differ."""
    rng, lines = np.random.default_rng(seed), []
    for line in range(count):
        prompt, requests = rng.integers(0, 256, rng.integers(1, 30)), []
        for turn in range(turns):
            requests.append(Request(prompt, seed=100 * line + turn, max_tokens=int(rng.integers(1, 30))))
            prompt = np.append(prompt, rng.integers(0, 256, rng.integers(1, most)))
        lines.append(requests)
    return lines


def run_lines(scheduler: Scheduler, lines: list[list[Request]]) -> Iterator[tuple[int, int, Completion]]:
    request_ids = {scheduler.submit(line[0]): (i, 0) for i, line in enumerate(lines)}
    while finished := scheduler.wait():
        for request_id, completion in finished:
            i, turn = request_ids.pop(request_id)
            yield i, turn, completion
            if turn + 1 < len(lines[i]):
                request_ids[scheduler.submit(lines[i][turn + 1])] = (i, turn + 1)
    assert not request_ids


def assert_same(found: Completion, model, tokenizer, request: Request, sampling: Sampling = WARM) -> None:
    (expected,) = LocalSampler(model, tokenizer, "cpu").sample([request], sampling)
    assert (found.tokens.tolist(), found.finish) == (expected.tokens.tolist(), expected.finish)
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-4)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("way", ["plain", "adapted", "qwen3", "few places", "small chunks", "greedy", "truncated"])
def test_completion_equals_one_sampled_alone(way, model, tokenizer, monkeypatch, chunk_schedules):
    if way == "adapted":
        model = with_adapter(model)
    if way == "qwen3":
        model = make_model("qwen3")
        model.config.max_position_embeddings = 1024
    if way == "small chunks":
        monkeypatch.setattr("tacit.engines.local.fast.llama_decoding.chunk_sizes", lambda width: (16, 48))
    sampling = {"greedy": Sampling(temperature=0), "truncated": Sampling(temperature=0.8, top_p=0.9)}.get(way, WARM)
    sampler = make_sampler(model, tokenizer, monkeypatch, max_batch=5 if way == "few places" else 256)
    lines = make_lines(9, 5)
    scheduler = sampler.open_scheduler(sampling)
    alone = LocalSampler(model, tokenizer, "cpu")
    came = 0
    for i, turn, completion in run_lines(scheduler, lines):
        (expected,) = alone.sample([lines[i][turn]], sampling)
        assert (completion.tokens.tolist(), completion.finish) == (expected.tokens.tolist(), expected.finish)
        np.testing.assert_allclose(completion.logprobs, expected.logprobs, atol=1e-4)
        came += 1
    assert came == 45
    read = [look for look in chunk_schedules if look is not None]
    assert len(read) > 8 and sum(len(look.completed.slots_N) for look in read) > 20, "nobody was read along"
    if way == "small chunks":
        assert {look.size for look in read} == {16, 48}
    assert sampler.prefilled_tokens == sum(len(request.prompt) for line in lines for request in line)
    assert not scheduler._chunked.is_active and not scheduler._slots.num_active


def measure_distance(scheduler: Scheduler, model, lines: list[list[Request]]) -> float:
    """Mean distance of log-probabilities from the model's own."""
    gaps = [
        found.logprobs - plain_logprobs(model, lines[i][turn].prompt, found.tokens, WARM.temperature)
        for i, turn, found in run_lines(scheduler, lines)
    ]
    return float(np.abs(np.concatenate(gaps)).mean())


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("rank", [0, 8])
def test_as_close_to_the_model_as_a_separate_prefill(rank, device, tokenizer, monkeypatch, chunk_schedules):
    """On a GPU in half precision, with kernels and CUDA graphs."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    model = make_model("qwen3")  # its heads are large enough for the kernels
    model.config.max_position_embeddings = 1024
    if rank:
        adapters = LoraConfig(r=rank, target_modules=LAYERS, init_lora_weights=False)
        model = get_peft_model(model, adapters).eval().get_base_model()
    model = model.to(torch.bfloat16 if device == "cuda" else torch.float32)
    wide, found, lines = copy.deepcopy(model).float(), {}, make_lines(9, 5)
    if device == "cuda":
        sampler = LocalSampler(model.to(device), tokenizer, device)
    else:
        sampler = make_sampler(model, tokenizer, monkeypatch)
    for most in (0, 16):
        monkeypatch.setattr(chunked_prefill, "MAX_CHUNKED_STEPS", most)
        scheduler = sampler.open_scheduler(WARM)
        found[most] = measure_distance(scheduler, wide, lines)
    assert sum(look is not None for look in chunk_schedules) > 8, "nobody was read along"
    assert scheduler._batch.graphs.enabled and any(key[-1] for key in scheduler._batch.graphs._graphs), (
        "no such step was recorded"
    )
    assert found[16] < 1.5 * found[0] + 0.01 < 0.2


def start(sampler: LocalSampler, version: Callable[[], int] = lambda: 0) -> tuple[Scheduler, dict[int, Request]]:
    """A scheduler with three sequences, one of them finished, and two more in chunked prefill."""
    rng = np.random.default_rng(7)
    first = [Request(rng.integers(0, 256, 9 + i), seed=i, max_tokens=2 if i == 0 else 60) for i in range(3)]
    more = [Request(rng.integers(0, 256, 400 + 100 * i), seed=10 + i, max_tokens=20) for i in range(2)]
    scheduler = sampler.open_scheduler(WARM, version=version)
    asked = {scheduler.submit(request): request for request in first}
    assert [request_id for request_id, _ in scheduler.wait()] == [0]
    asked |= {scheduler.submit(request): request for request in more}
    return scheduler, {request_id: request for request_id, request in asked.items() if request_id}


def finish(scheduler: Scheduler) -> dict[int, Completion]:
    found: dict[int, Completion] = {}
    while finished := scheduler.wait():
        found |= dict(finished)
    scheduler.close()
    return found


def fail_during(scheduler: Scheduler, monkeypatch, error: BaseException, at: int = 2) -> None:
    """Fail in the decode call number `at` from now on, during chunked prefill."""
    advance, chunk_schedules = LlamaDecodeBatch.decode, []

    def failing(self, noise, longest, sampling, look=None):
        chunk_schedules.append(look)
        if len(chunk_schedules) == at:
            assert scheduler._slots.prefilling_S.any() and look is not None
            raise error
        return advance(self, noise, longest, sampling, look)

    monkeypatch.setattr(LlamaDecodeBatch, "decode", failing)


@pytest.fixture
def small_chunks(monkeypatch):
    """A prompt takes several schedules."""
    monkeypatch.setattr("tacit.engines.local.fast.llama_decoding.chunk_sizes", lambda width: (32, 64))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), torch.OutOfMemoryError("no room"), RuntimeError("of the device")],
    ids=["interrupted", "short", "failed"],
)
def test_error_during_chunked_prefill_loses_no_request(error, at, model, tokenizer, monkeypatch, small_chunks):
    sampler = make_sampler(model, tokenizer, monkeypatch)
    scheduler, asked = start(sampler)
    fail_during(scheduler, monkeypatch, error, at)
    found: dict[int, Completion] = {}
    try:
        found |= dict(scheduler.wait())
    except (KeyboardInterrupt, RuntimeError) as raised:
        assert raised is error and not isinstance(raised, torch.OutOfMemoryError)
        assert not scheduler._slots.num_active and not scheduler._chunked.is_active
    found |= finish(scheduler)
    assert found.keys() == asked.keys()
    for request_id, request in asked.items():
        assert_same(found[request_id], model, tokenizer, request)


def test_oom_in_reserve_loses_no_request(model, tokenizer, monkeypatch, small_chunks):
    sampler = make_sampler(model, tokenizer, monkeypatch)
    scheduler, asked = start(sampler)
    reserve, times = LlamaDecodeBatch.reserve, []

    def short(self, *given):
        times.append(1)
        if len(times) == 1:
            raise torch.OutOfMemoryError("no room")
        reserve(self, *given)

    monkeypatch.setattr(LlamaDecodeBatch, "reserve", short)
    found = finish(scheduler)
    assert times and found.keys() == asked.keys()
    for request_id, request in asked.items():
        assert_same(found[request_id], model, tokenizer, request)


def start_chunked(scheduler: Scheduler, monkeypatch) -> None:
    """Return to the caller during chunked prefill: MAX_WAIT is over."""
    with monkeypatch.context() as patch:
        patch.setattr(chunked_prefill, "CHUNKED_MAX_WAIT", 0)
        assert scheduler.wait() == []
    assert scheduler._chunked.is_active and scheduler._pending


def test_weight_update_during_chunked_prefill_restarts_sequences(model, tokenizer, monkeypatch, small_chunks):
    versions = [0]
    sampler = make_sampler(model, tokenizer, monkeypatch)
    scheduler, asked = start(sampler, lambda: versions[0])
    start_chunked(scheduler, monkeypatch)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(-3)
    versions[0] = 1
    found = finish(scheduler)
    assert found.keys() == asked.keys() and {completion.version for completion in found.values()} == {1}
    for request_id, request in asked.items():
        assert_same(found[request_id], model, tokenizer, request)


@pytest.mark.slow
def test_requests_join_during_chunked_prefill(model, tokenizer, monkeypatch, small_chunks, chunk_schedules):
    """More requests than slots and capacity, some so long that they get a separate prefill."""
    sampler = make_sampler(model, tokenizer, monkeypatch)
    scheduler, asked = start(sampler)
    rng, did = np.random.default_rng(8), []
    for name in ("prefill", "reserve"):
        way = getattr(LlamaDecodeBatch, name)
        monkeypatch.setattr(LlamaDecodeBatch, name, lambda *given, name=name, way=way: (did.append(name), way(*given))[1])
    for lengths in ((30, 3, 1), (700, 650, 200), (17, 16, 2)):
        start_chunked(scheduler, monkeypatch)
        new = [Request(rng.integers(0, 256, length), seed=length, max_tokens=9) for length in lengths]
        asked |= {scheduler.submit(request): request for request in new}
    before = scheduler._batch.cache.capacity, scheduler._batch.cache.slots
    assert before > (512, 4) and before[1] > 4, "the table has not grown meanwhile"
    found = finish(scheduler)
    assert did == ["reserve", "reserve", "prefill", "reserve"]
    assert found.keys() == asked.keys()
    for request_id, request in asked.items():
        assert_same(found[request_id], model, tokenizer, request)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("how", ["close", "release"])
def test_close_during_chunked_prefill_leaves_nothing_behind(how, model, tokenizer, monkeypatch, small_chunks):
    sampler = make_sampler(model, tokenizer, monkeypatch)
    scheduler, asked = start(sampler)
    start_chunked(scheduler, monkeypatch)
    getattr(scheduler, how)()
    assert not scheduler._chunked.is_active and not scheduler._pending
    found = finish(scheduler)
    assert found.keys() == (asked.keys() if how == "release" else set())
    scheduler, asked = start(sampler)  # with the recycled batch
    for request_id, completion in finish(scheduler).items():
        assert_same(completion, model, tokenizer, asked[request_id])


def test_nonfinite_logits_after_chunked_prefill_raise(model, tokenizer, monkeypatch, small_chunks):
    sampler = make_sampler(model, tokenizer, monkeypatch)
    scheduler, asked = start(sampler)
    start_chunked(scheduler, monkeypatch)
    weight = model.model.layers[0].mlp.up_proj.weight
    healthy = weight.data.clone()
    weight.data.fill_(float("nan"))
    sampler.weights_changed()
    with pytest.raises(TacitError, match="not finite"):
        scheduler.wait()
    weight.data.copy_(healthy)
    sampler.weights_changed()
    for request_id, completion in finish(scheduler).items():
        assert_same(completion, model, tokenizer, asked[request_id])


@pytest.mark.slow
def test_same_requests_repeat_bit_for_bit(model, tokenizer, monkeypatch):
    fresh, used = (make_sampler(model, tokenizer, monkeypatch) for _ in range(2))
    list(run_lines(used.open_scheduler(Sampling()), make_lines(5, 3, seed=3, most=200)))

    def play(sampler: LocalSampler) -> list:
        return [
            (i, turn, c.tokens.tolist(), c.logprobs.tolist())
            for i, turn, c in run_lines(sampler.open_scheduler(WARM), make_lines(7, 3))
        ]

    assert play(fresh) == play(used) == play(fresh)


WHEN_NOT = ["hidden states", "a CPU", "switched off", "all alike", "too many", "little is written", "padded"]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("why", WHEN_NOT)
def test_separate_prefill_where_chunked_is_impossible_or_slower(why, model, tokenizer, monkeypatch, chunk_schedules):
    sampler = make_sampler(model, tokenizer, monkeypatch)
    if why == "a CPU":
        sampler = LocalSampler(model, tokenizer, "cpu")
    if why == "padded":
        sampler._llama = LlamaDecoder(model, fixed_shapes=True, varlen=False)
    if why == "switched off":
        monkeypatch.setattr(chunked_prefill, "MAX_CHUNKED_STEPS", 0)
    if why == "too many":
        monkeypatch.setattr(chunked_prefill, "MAX_CHUNKED_STEPS", 1)
    if why == "little is written":
        monkeypatch.setattr(chunked_prefill, "max_prefill_steps", MOST_STEPS)
    rng = np.random.default_rng(0)
    scheduler = sampler.open_scheduler(WARM, hidden=HiddenState(1) if why == "hidden states" else None)
    for limit in (2, 60, 60):
        scheduler.submit(Request(rng.integers(0, 256, 9), seed=limit, max_tokens=limit))
    scheduler.wait()
    prompt = rng.integers(0, 256, 200)
    new = [Request(prompt if why == "all alike" else rng.integers(0, 256, 200), seed=i, max_tokens=5) for i in range(3)]
    request_ids = {scheduler.submit(request): request for request in new}
    found = finish(scheduler)
    for request_id, request in request_ids.items():
        assert_same(found[request_id], model, tokenizer, request)
    assert chunk_schedules and all(look is None for look in chunk_schedules)


@pytest.mark.parametrize("written, expected", [(0, 0), (7, 0), (8, 1), (127, 15), (128, 16), (1000, 16)])
def test_max_prefill_steps(written, expected):
    assert MOST_STEPS(written, 1) == MOST_STEPS(5 * written, 5) == expected
    assert MOST_STEPS(0, 0) == 0


@pytest.mark.parametrize("first, along", [(7, False), (40, True)])
def test_scheduler_counts_finished_tokens(first, along, model, tokenizer, monkeypatch, chunk_schedules):
    """Whether a request that joins after one completion of so many tokens is prefilled in chunks."""
    monkeypatch.setattr(chunked_prefill, "max_prefill_steps", MOST_STEPS)
    scheduler, rng = make_sampler(model, tokenizer, monkeypatch).open_scheduler(WARM), np.random.default_rng(0)
    for limit in (first, 90, 90):
        scheduler.submit(Request(rng.integers(0, 256, 9), seed=limit, max_tokens=limit))
    assert [len(completion.tokens) for _, completion in scheduler.wait()] == [first]
    scheduler.submit(Request(rng.integers(0, 256, 40), seed=1, max_tokens=3))
    scheduler.wait()
    assert any(look is not None for look in chunk_schedules) == along


def test_started_chunked_prefill_is_finished(model, tokenizer, monkeypatch, small_chunks, chunk_schedules):
    """Many short completions finish during a long chunked prefill; no new one would start."""
    monkeypatch.setattr(chunked_prefill, "max_prefill_steps", MOST_STEPS)
    scheduler, rng, asked = make_sampler(model, tokenizer, monkeypatch).open_scheduler(WARM), np.random.default_rng(0), {}
    for limit in (2, 60, 60):
        scheduler.submit(Request(rng.integers(0, 256, 9), seed=limit, max_tokens=limit))
    assert len(scheduler.wait()) == 1
    scheduler._num_finished_tokens = 128
    for length, limit in (*[(9, 1)] * 20, (680, 20)):
        request = Request(rng.integers(0, 256, length), seed=len(asked), max_tokens=limit)
        asked[scheduler.submit(request)] = request
    found = finish(scheduler)
    assert sum(look is not None for look in chunk_schedules) > 2
    for request_id, request in asked.items():
        assert_same(found[request_id], model, tokenizer, request)


def test_duplicate_prompts_use_a_separate_prefill(model, tokenizer, monkeypatch, chunk_schedules):
    scheduler, rng = make_sampler(model, tokenizer, monkeypatch).open_scheduler(WARM), np.random.default_rng(0)
    for limit in (2, 3, 90):
        scheduler.submit(Request(rng.integers(0, 256, 9), seed=limit, max_tokens=limit))
    assert len(scheduler.wait()) == 2
    prompt = rng.integers(0, 256, 40)
    for seed in range(2):
        scheduler.submit(Request(prompt, seed=seed, max_tokens=3))
    assert len(finish(scheduler)) == 3 and not any(chunk_schedules)


@pytest.mark.parametrize("most", [0, 16])
def test_support_is_probed_on_first_use(most, model, tokenizer, monkeypatch):
    """On a GPU it compiles a kernel, which takes seconds."""
    asked = []
    monkeypatch.setattr(KeyValueCache, "supports_chunked_prefill", property(lambda self: asked.append(self) or True))
    monkeypatch.setattr(chunked_prefill, "MAX_CHUNKED_STEPS", most)
    sampler = as_on_a_gpu(model, tokenizer, monkeypatch, max_batch=2)
    sampler._llama = LlamaDecoder(model, fixed_shapes=True, varlen=True)
    assert len(sampler.sample(make_lines(1, 4)[0], WARM)) == 4
    assert len(asked) == (1 if most else 0)


def test_rounds_are_shorter_when_next_prompts_can_be_chunked(model, tokenizer, monkeypatch):
    """One short line among many long ones waits a few steps; with separate prefills, many."""
    monkeypatch.setattr("tacit.engines.local.fast.llama_decoding.chunk_sizes", lambda width: (16, 32))
    waited = {}
    for most, length in ((0, 5), (1, 5), (1, 40)):
        monkeypatch.setattr(chunked_prefill, "MAX_CHUNKED_STEPS", most)
        scheduler = make_sampler(model, tokenizer, monkeypatch).open_scheduler(WARM)
        for i in range(30):
            scheduler.submit(Request(np.arange(length), seed=i, max_tokens=2 if i == 0 else 120))
        assert 0 in dict(scheduler.wait())
        waited[most, length] = int(scheduler._slots._lengths_S.max())
    assert waited[1, 5] <= 2 + 2 * chunked_prefill.CHUNKED_MAX_WAIT < min(waited[0, 5], waited[1, 40])


def test_rounds_are_not_shorter_before_separate_prefills(model, tokenizer, monkeypatch):
    """The next requests are waiting and identical, so a separate prefill computes their prompt once."""
    rng, waited = np.random.default_rng(0), {}
    for assert_same in (False, True):
        prompts = np.repeat(rng.integers(0, 256, (1, 9)), 34, 0) if assert_same else rng.integers(0, 256, (34, 9))
        scheduler = make_sampler(model, tokenizer, monkeypatch, max_batch=30).open_scheduler(WARM)
        for i, prompt in enumerate(prompts):
            scheduler.submit(Request(prompt, seed=i, max_tokens=2 if i < 4 else 120))
        assert len(scheduler.wait()) == 4
        waited[assert_same] = int(scheduler._slots._lengths_S.max())
    assert waited[False] <= 2 + 2 * chunked_prefill.CHUNKED_MAX_WAIT < waited[True]


def is_spoiled(sampler: LocalSampler, model, tokenizer) -> bool:
    scheduler, asked = start(sampler)
    found, alone = finish(scheduler), LocalSampler(model, tokenizer, "cpu")
    return any(
        found[request_id].tokens.tolist() != alone.sample([request], WARM)[0].tokens.tolist()
        for request_id, request in asked.items()
    )


@pytest.mark.slow
def test_prefilling_slot_must_not_write_inside_its_prompt(model, tokenizer, monkeypatch, small_chunks):
    """Shows that these tests would notice."""
    assert not is_spoiled(make_sampler(model, tokenizer, monkeypatch), model, tokenizer)
    reserve = LlamaDecodeBatch.reserve

    def at_the_beginning(self, seats, *given):
        reserve(self, seats, *given)
        self._state.positions_B[torch.from_numpy(seats.slots_N)] = 0

    monkeypatch.setattr(LlamaDecodeBatch, "reserve", at_the_beginning)
    assert is_spoiled(make_sampler(model, tokenizer, monkeypatch), model, tokenizer)
