"""Prompts that are read along in the steps of those who write: each completion is the one its request gets alone."""

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
from tacit.core.types import Completion
from tacit.engines.local.fast import chunked_prefill
from tacit.engines.local.kv_cache import KeyValueCache
from tacit.engines.local.llama_decoding import LlamaDecodeBatch, LlamaDecoder
from tacit.engines.local.scheduler import LocalSampler

pytestmark = pytest.mark.filterwarnings("ignore:out of GPU memory")

WARM = Sampling(temperature=0.9)
MOST_STEPS = chunked_prefill.max_prefill_steps
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(autouse=True)
def however_little_is_written(monkeypatch):
    """Prompts are read along."""
    monkeypatch.setattr(chunked_prefill, "max_prefill_steps", lambda written, rows: chunked_prefill.MAX_CHUNKED_STEPS)


def mixer(model, tokenizer, monkeypatch, **options) -> LocalSampler:
    """As on a GPU that has kernels for prompts that are read along."""
    sampler = as_on_a_gpu(model, tokenizer, monkeypatch, varlen=True, **options)
    assert sampler._llama.supports_chunked_prefill
    return sampler


@pytest.fixture
def looks(monkeypatch) -> list[chunked_prefill.Look | None]:
    """What tables have read along."""
    seen: list[chunked_prefill.Look | None] = []
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


def lines_of(count: int, turns: int, seed: int = 0, most: int = 90) -> list[list[Request]]:
    """Requests that follow one another, side by side; prompts grow, and everything is ragged."""
    rng, lines = np.random.default_rng(seed), []
    for line in range(count):
        prompt, requests = rng.integers(0, 256, rng.integers(1, 30)), []
        for turn in range(turns):
            requests.append(Request(prompt, seed=100 * line + turn, max_tokens=int(rng.integers(1, 30))))
            prompt = np.append(prompt, rng.integers(0, 256, rng.integers(1, most)))
        lines.append(requests)
    return lines


def walk(scheduler: Scheduler, lines: list[list[Request]]) -> Iterator[tuple[int, int, Completion]]:
    request_ids = {scheduler.submit(line[0]): (i, 0) for i, line in enumerate(lines)}
    while finished := scheduler.wait():
        for request_id, completion in finished:
            i, turn = request_ids.pop(request_id)
            yield i, turn, completion
            if turn + 1 < len(lines[i]):
                request_ids[scheduler.submit(lines[i][turn + 1])] = (i, turn + 1)
    assert not request_ids


def alike(found: Completion, model, tokenizer, request: Request, sampling: Sampling = WARM) -> None:
    (expected,) = LocalSampler(model, tokenizer, "cpu").sample([request], sampling)
    assert (found.tokens.tolist(), found.finish) == (expected.tokens.tolist(), expected.finish)
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-4)


@pytest.mark.parametrize("way", ["plain", "adapted", "qwen3", "few places", "small chunks", "greedy", "truncated"])
def test_every_completion_is_the_one_its_request_gets_alone(way, model, tokenizer, monkeypatch, looks):
    if way == "adapted":
        model = with_adapter(model)
    if way == "qwen3":
        model = make_model("qwen3")
        model.config.max_position_embeddings = 1024
    if way == "small chunks":
        monkeypatch.setattr("tacit.engines.local.llama_decoding.chunk_sizes", lambda width: (16, 48))
    sampling = {"greedy": Sampling(temperature=0), "truncated": Sampling(temperature=0.8, top_p=0.9)}.get(way, WARM)
    sampler = mixer(model, tokenizer, monkeypatch, max_batch=5 if way == "few places" else 256)
    lines = lines_of(9, 5)
    scheduler = sampler.open_scheduler(sampling)
    alone = LocalSampler(model, tokenizer, "cpu")
    came = 0
    for i, turn, completion in walk(scheduler, lines):
        (expected,) = alone.sample([lines[i][turn]], sampling)
        assert (completion.tokens.tolist(), completion.finish) == (expected.tokens.tolist(), expected.finish)
        np.testing.assert_allclose(completion.logprobs, expected.logprobs, atol=1e-4)
        came += 1
    assert came == 45
    read = [look for look in looks if look is not None]
    assert len(read) > 8 and sum(len(look.completed.slots_N) for look in read) > 20, "nobody was read along"
    if way == "small chunks":
        assert {look.size for look in read} == {16, 48}
    assert sampler.prefilled_tokens == sum(len(request.prompt) for line in lines for request in line)
    assert not scheduler._chunked.is_active and not scheduler._slots.num_active


def apart(scheduler: Scheduler, model, lines: list[list[Request]]) -> float:
    """How far log-probabilities are from the model's own, on average."""
    gaps = [
        found.logprobs - plain_logprobs(model, lines[i][turn].prompt, found.tokens, WARM.temperature)
        for i, turn, found in walk(scheduler, lines)
    ]
    return float(np.abs(np.concatenate(gaps)).mean())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("rank", [0, 8])
def test_it_is_as_close_to_the_model_as_with_a_prefill(rank, device, tokenizer, monkeypatch, looks):
    """On a GPU in half precision, with its kernels, and recorded."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    model = make_model("qwen3")  # whose heads are large enough for the kernels
    model.config.max_position_embeddings = 1024
    if rank:
        adapters = LoraConfig(r=rank, target_modules=LAYERS, init_lora_weights=False)
        model = get_peft_model(model, adapters).eval().get_base_model()
    model = model.to(torch.bfloat16 if device == "cuda" else torch.float32)
    wide, found, lines = copy.deepcopy(model).float(), {}, lines_of(9, 5)
    if device == "cuda":
        sampler = LocalSampler(model.to(device), tokenizer, device)
    else:
        sampler = mixer(model, tokenizer, monkeypatch)
    for most in (0, 16):
        monkeypatch.setattr(chunked_prefill, "MAX_CHUNKED_STEPS", most)
        scheduler = sampler.open_scheduler(WARM)
        found[most] = apart(scheduler, wide, lines)
    assert sum(look is not None for look in looks) > 8, "nobody was read along"
    assert scheduler._batch.graphs.enabled and any(key[-1] for key in scheduler._batch.graphs._graphs), (
        "no such step was recorded"
    )
    assert found[16] < 1.5 * found[0] + 0.01 < 0.2


def begun(sampler: LocalSampler, version: Callable[[], int] = lambda: 0) -> tuple[Scheduler, dict[int, Request]]:
    """A scheduler where three have sat down, of whom one is over, and where two more are read along and not yet ready."""
    rng = np.random.default_rng(7)
    first = [Request(rng.integers(0, 256, 9 + i), seed=i, max_tokens=2 if i == 0 else 60) for i in range(3)]
    more = [Request(rng.integers(0, 256, 400 + 100 * i), seed=10 + i, max_tokens=20) for i in range(2)]
    scheduler = sampler.open_scheduler(WARM, version=version)
    asked = {scheduler.submit(request): request for request in first}
    assert [request_id for request_id, _ in scheduler.wait()] == [0]
    asked |= {scheduler.submit(request): request for request in more}
    return scheduler, {request_id: request for request_id, request in asked.items() if request_id}


def the_rest(scheduler: Scheduler) -> dict[int, Completion]:
    found: dict[int, Completion] = {}
    while finished := scheduler.wait():
        found |= dict(finished)
    scheduler.close()
    return found


def stopped_while(scheduler: Scheduler, monkeypatch, error: BaseException, at: int = 2) -> None:
    """The table fails in its look number `at` from now on, while a prompt is being read."""
    advance, looks = LlamaDecodeBatch.decode, []

    def failing(self, noise, longest, sampling, look=None):
        looks.append(look)
        if len(looks) == at:
            assert scheduler._slots._prefilling_S.any() and look is not None
            raise error
        return advance(self, noise, longest, sampling, look)

    monkeypatch.setattr(LlamaDecodeBatch, "decode", failing)


@pytest.fixture
def small_chunks(monkeypatch):
    """So that a prompt takes several looks."""
    monkeypatch.setattr("tacit.engines.local.llama_decoding.chunk_sizes", lambda width: (32, 64))


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), torch.OutOfMemoryError("no room"), RuntimeError("of the device")],
    ids=["interrupted", "short", "failed"],
)
def test_whatever_happens_while_prompts_are_read_nobody_is_lost(error, at, model, tokenizer, monkeypatch, small_chunks):
    sampler = mixer(model, tokenizer, monkeypatch)
    scheduler, asked = begun(sampler)
    stopped_while(scheduler, monkeypatch, error, at)
    found: dict[int, Completion] = {}
    try:
        found |= dict(scheduler.wait())
    except (KeyboardInterrupt, RuntimeError) as raised:
        assert raised is error and not isinstance(raised, torch.OutOfMemoryError)
        assert not scheduler._slots.num_active and not scheduler._chunked.is_active
    found |= the_rest(scheduler)
    assert found.keys() == asked.keys()
    for request_id, request in asked.items():
        alike(found[request_id], model, tokenizer, request)


def test_a_shortage_when_places_are_reserved_loses_nobody(model, tokenizer, monkeypatch, small_chunks):
    sampler = mixer(model, tokenizer, monkeypatch)
    scheduler, asked = begun(sampler)
    reserve, times = LlamaDecodeBatch.reserve, []

    def short(self, *given):
        times.append(1)
        if len(times) == 1:
            raise torch.OutOfMemoryError("no room")
        reserve(self, *given)

    monkeypatch.setattr(LlamaDecodeBatch, "reserve", short)
    found = the_rest(scheduler)
    assert times and found.keys() == asked.keys()
    for request_id, request in asked.items():
        alike(found[request_id], model, tokenizer, request)


def until_some_are_read(scheduler: Scheduler, monkeypatch) -> None:
    """As if the caller had come back while prompts are being read: the patience of a scheduler is over."""
    with monkeypatch.context() as patch:
        patch.setattr(chunked_prefill, "CHUNKED_MAX_WAIT", 0)
        assert scheduler.wait() == []
    assert scheduler._chunked.is_active and scheduler._pending


def test_weights_that_change_while_prompts_are_read_write_all_of_a_completion(model, tokenizer, monkeypatch, small_chunks):
    versions = [0]
    sampler = mixer(model, tokenizer, monkeypatch)
    scheduler, asked = begun(sampler, lambda: versions[0])
    until_some_are_read(scheduler, monkeypatch)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(-3)
    versions[0] = 1
    found = the_rest(scheduler)
    assert found.keys() == asked.keys() and {completion.version for completion in found.values()} == {1}
    for request_id, request in asked.items():
        alike(found[request_id], model, tokenizer, request)


def test_others_may_join_while_prompts_are_read(model, tokenizer, monkeypatch, small_chunks, looks):
    """More of them than there were places and columns, and some so long that they are prefilled while all wait."""
    sampler = mixer(model, tokenizer, monkeypatch)
    scheduler, asked = begun(sampler)
    rng, did = np.random.default_rng(8), []
    for name in ("prefill", "reserve"):
        way = getattr(LlamaDecodeBatch, name)
        monkeypatch.setattr(LlamaDecodeBatch, name, lambda *given, name=name, way=way: (did.append(name), way(*given))[1])
    for lengths in ((30, 3, 1), (700, 650, 200), (17, 16, 2)):
        until_some_are_read(scheduler, monkeypatch)
        new = [Request(rng.integers(0, 256, length), seed=length, max_tokens=9) for length in lengths]
        asked |= {scheduler.submit(request): request for request in new}
    before = scheduler._batch.cache.capacity, scheduler._batch.cache.slots
    assert before > (512, 4) and before[1] > 4, "the table has not grown meanwhile"
    found = the_rest(scheduler)
    assert did == ["reserve", "reserve", "prefill", "reserve"]
    assert found.keys() == asked.keys()
    for request_id, request in asked.items():
        alike(found[request_id], model, tokenizer, request)


@pytest.mark.parametrize("how", ["close", "let_go"])
def test_a_scheduler_that_is_left_while_prompts_are_read_leaves_nothing_behind(
    how, model, tokenizer, monkeypatch, small_chunks
):
    sampler = mixer(model, tokenizer, monkeypatch)
    scheduler, asked = begun(sampler)
    until_some_are_read(scheduler, monkeypatch)
    getattr(scheduler, how)()
    assert not scheduler._chunked.is_active and not scheduler._pending
    found = the_rest(scheduler)
    assert found.keys() == (asked.keys() if how == "let_go" else set())
    scheduler, asked = begun(sampler)  # at the same table, where it was kept
    for request_id, completion in the_rest(scheduler).items():
        alike(completion, model, tokenizer, asked[request_id])


def test_logits_that_are_not_numbers_are_noticed_where_a_prompt_was_read_along(model, tokenizer, monkeypatch, small_chunks):
    sampler = mixer(model, tokenizer, monkeypatch)
    scheduler, asked = begun(sampler)
    until_some_are_read(scheduler, monkeypatch)
    weight = model.model.layers[0].mlp.up_proj.weight
    healthy = weight.data.clone()
    weight.data.fill_(float("nan"))
    sampler.weights_changed()
    with pytest.raises(TacitError, match="not finite"):
        scheduler.wait()
    weight.data.copy_(healthy)
    sampler.weights_changed()
    for request_id, completion in the_rest(scheduler).items():
        alike(completion, model, tokenizer, asked[request_id])


def test_the_same_requests_give_the_same_bits_in_the_same_order(model, tokenizer, monkeypatch):
    fresh, used = (mixer(model, tokenizer, monkeypatch) for _ in range(2))
    list(walk(used.open_scheduler(Sampling()), lines_of(5, 3, seed=3, most=200)))

    def play(sampler: LocalSampler) -> list:
        return [
            (i, turn, c.tokens.tolist(), c.logprobs.tolist())
            for i, turn, c in walk(sampler.open_scheduler(WARM), lines_of(7, 3))
        ]

    assert play(fresh) == play(used) == play(fresh)


WHEN_NOT = ["hidden states", "a CPU", "switched off", "all alike", "too many", "little is written", "padded"]


@pytest.mark.parametrize("why", WHEN_NOT)
def test_prompts_are_prefilled_as_before_where_they_cannot_or_had_better_not_be_mixed_in(
    why, model, tokenizer, monkeypatch, looks
):
    sampler = mixer(model, tokenizer, monkeypatch)
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
    scheduler = sampler.open_scheduler(WARM, layer=1 if why == "hidden states" else None)
    for limit in (2, 60, 60):
        scheduler.submit(Request(rng.integers(0, 256, 9), seed=limit, max_tokens=limit))
    scheduler.wait()
    prompt = rng.integers(0, 256, 200)
    new = [Request(prompt if why == "all alike" else rng.integers(0, 256, 200), seed=i, max_tokens=5) for i in range(3)]
    request_ids = {scheduler.submit(request): request for request in new}
    found = the_rest(scheduler)
    for request_id, request in request_ids.items():
        alike(found[request_id], model, tokenizer, request)
    assert looks and all(look is None for look in looks)


@pytest.mark.parametrize("written, expected", [(0, 0), (7, 0), (8, 1), (127, 15), (128, 16), (1000, 16)])
def test_prompts_are_read_in_few_of_the_steps_in_which_a_row_writes(written, expected):
    assert MOST_STEPS(written, 1) == MOST_STEPS(5 * written, 5) == expected
    assert MOST_STEPS(0, 0) == 0


@pytest.mark.parametrize("first, along", [(7, False), (40, True)])
def test_how_much_is_written_is_counted_at_the_scheduler(first, along, model, tokenizer, monkeypatch, looks):
    """Who joins when one row is over, after so many tokens, is read along or not."""
    monkeypatch.setattr(chunked_prefill, "max_prefill_steps", MOST_STEPS)
    scheduler, rng = mixer(model, tokenizer, monkeypatch).open_scheduler(WARM), np.random.default_rng(0)
    for limit in (first, 90, 90):
        scheduler.submit(Request(rng.integers(0, 256, 9), seed=limit, max_tokens=limit))
    assert [len(completion.tokens) for _, completion in scheduler.wait()] == [first]
    scheduler.submit(Request(rng.integers(0, 256, 40), seed=1, max_tokens=3))
    scheduler.wait()
    assert any(look is not None for look in looks) == along


def test_what_is_being_read_is_read_to_its_end_however_little_the_others_write(
    model, tokenizer, monkeypatch, small_chunks, looks
):
    """Many short rows end while a long prompt is read; nobody would be read along any more."""
    monkeypatch.setattr(chunked_prefill, "max_prefill_steps", MOST_STEPS)
    scheduler, rng, asked = mixer(model, tokenizer, monkeypatch).open_scheduler(WARM), np.random.default_rng(0), {}
    for limit in (2, 60, 60):
        scheduler.submit(Request(rng.integers(0, 256, 9), seed=limit, max_tokens=limit))
    assert len(scheduler.wait()) == 1
    scheduler._written = 128  # by that one
    for length, limit in (*[(9, 1)] * 20, (680, 20)):
        request = Request(rng.integers(0, 256, length), seed=len(asked), max_tokens=limit)
        asked[scheduler.submit(request)] = request
    found = the_rest(scheduler)
    assert sum(look is not None for look in looks) > 2
    for request_id, request in asked.items():
        alike(found[request_id], model, tokenizer, request)


def test_pairs_of_the_same_prompt_are_prefilled(model, tokenizer, monkeypatch, looks):
    scheduler, rng = mixer(model, tokenizer, monkeypatch).open_scheduler(WARM), np.random.default_rng(0)
    for limit in (2, 3, 90):
        scheduler.submit(Request(rng.integers(0, 256, 9), seed=limit, max_tokens=limit))
    assert len(scheduler.wait()) == 2
    prompt = rng.integers(0, 256, 40)
    for seed in range(2):
        scheduler.submit(Request(prompt, seed=seed, max_tokens=3))
    assert len(the_rest(scheduler)) == 3 and not any(looks)


@pytest.mark.parametrize("most", [0, 16])
def test_whether_prompts_can_be_read_along_is_found_out_only_where_it_is_wanted(most, model, tokenizer, monkeypatch):
    """On a GPU a kernel is compiled and tried for it, which takes seconds."""
    asked = []
    monkeypatch.setattr(KeyValueCache, "supports_chunked_prefill", property(lambda self: asked.append(self) or True))
    monkeypatch.setattr(chunked_prefill, "MAX_CHUNKED_STEPS", most)
    sampler = as_on_a_gpu(model, tokenizer, monkeypatch, max_batch=2)
    sampler._llama = LlamaDecoder(model, fixed_shapes=True, varlen=True)
    assert len(sampler.sample(lines_of(1, 4)[0], WARM)) == 4
    assert len(asked) == (1 if most else 0)


def test_a_scheduler_comes_back_sooner_where_those_who_come_next_can_be_mixed_in(model, tokenizer, monkeypatch):
    """One short line among many long ones waits a few steps, and where a join would stop everybody, many."""
    monkeypatch.setattr("tacit.engines.local.llama_decoding.chunk_sizes", lambda width: (16, 32))
    waited = {}
    for most, length in ((0, 5), (1, 5), (1, 40)):
        monkeypatch.setattr(chunked_prefill, "MAX_CHUNKED_STEPS", most)
        scheduler = mixer(model, tokenizer, monkeypatch).open_scheduler(WARM)
        for i in range(30):
            scheduler.submit(Request(np.arange(length), seed=i, max_tokens=2 if i == 0 else 120))
        assert 0 in dict(scheduler.wait())
        waited[most, length] = int(scheduler._slots._lengths_S.max())
    assert waited[1, 5] <= 2 + 2 * chunked_prefill.CHUNKED_MAX_WAIT < min(waited[0, 5], waited[1, 40])


def test_a_scheduler_does_not_hurry_for_those_who_will_be_prefilled(model, tokenizer, monkeypatch):
    """Who comes next is known where requests wait: of those that are alike, a prefill computes the prompt once."""
    rng, waited = np.random.default_rng(0), {}
    for alike in (False, True):
        prompts = np.repeat(rng.integers(0, 256, (1, 9)), 34, 0) if alike else rng.integers(0, 256, (34, 9))
        scheduler = mixer(model, tokenizer, monkeypatch, max_batch=30).open_scheduler(WARM)
        for i, prompt in enumerate(prompts):
            scheduler.submit(Request(prompt, seed=i, max_tokens=2 if i < 4 else 120))
        assert len(scheduler.wait()) == 4
        waited[alike] = int(scheduler._slots._lengths_S.max())
    assert waited[False] <= 2 + 2 * chunked_prefill.CHUNKED_MAX_WAIT < waited[True]


def spoiled(sampler: LocalSampler, model, tokenizer) -> bool:
    scheduler, asked = begun(sampler)
    found, alone = the_rest(scheduler), LocalSampler(model, tokenizer, "cpu")
    return any(
        found[request_id].tokens.tolist() != alone.sample([request], WARM)[0].tokens.tolist()
        for request_id, request in asked.items()
    )


def test_a_place_that_ran_along_within_its_prompt_would_spoil_it(model, tokenizer, monkeypatch, small_chunks):
    """That these tests would notice."""
    assert not spoiled(mixer(model, tokenizer, monkeypatch), model, tokenizer)
    reserve = LlamaDecodeBatch.reserve

    def at_the_beginning(self, seats, *given):
        reserve(self, seats, *given)
        self._state.positions_B[torch.from_numpy(seats.slots_N)] = 0

    monkeypatch.setattr(LlamaDecodeBatch, "reserve", at_the_beginning)
    assert spoiled(mixer(model, tokenizer, monkeypatch), model, tokenizer)
