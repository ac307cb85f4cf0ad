"""Continuous batching: a completion does not depend on the other requests."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from random_models import as_on_a_gpu, make_model, make_prompts

from tacit.core.credit import Batch
from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling, Scheduler, SchedulingSampler
from tacit.core.types import Completion, HiddenState
from tacit.engines.local.fast.llama import LlamaForward
from tacit.engines.local.fast.llama_decoding import LlamaDecodeBatch
from tacit.engines.local.memory import free_memory
from tacit.engines.local.scheduler import MAX_WAIT_STEPS, LocalSampler
from tacit.engines.local.slots import MAX_STOP_SETS, Slots, StopConditions
from tacit.losses.surrogates import Imitation


@pytest.fixture(scope="module")
def llama():
    return make_model("llama")


def make_chains(count: int, turns: int, seed: int = 0) -> list[list[Request]]:
    """Chains of requests, each submitted when the previous one finishes. Prompts grow, limits differ."""
    rng = np.random.default_rng(seed)
    lines = []
    for line in range(count):
        prompt, requests = rng.integers(0, 256, 4 + line % 5), []
        for turn in range(turns):
            requests.append(Request(prompt, seed=100 * line + turn, max_tokens=int(rng.integers(1, 30))))
            prompt = np.append(prompt, rng.integers(0, 256, rng.integers(1, 9)))
        lines.append(requests)
    return lines


def run_chains(scheduler: Scheduler, lines: list[list[Request]]) -> Iterator[list[tuple[int, int, Completion]]]:
    """Submit the first request of each chain, and the next one when it finishes. Yields the completions."""
    request_ids = {scheduler.submit(line[0]): (number, 0) for number, line in enumerate(lines)}
    while finished := scheduler.wait():
        yield [(*request_ids[request_id], completion) for request_id, completion in finished]
        for request_id, _ in finished:
            number, turn = request_ids.pop(request_id)
            if turn + 1 < len(lines[number]):
                request_ids[scheduler.submit(lines[number][turn + 1])] = (number, turn + 1)
    assert not request_ids
    scheduler.close()


def assert_same(a: Completion, b: Completion) -> None:
    assert (a.tokens.tolist(), a.text, a.finish) == (b.tokens.tolist(), b.text, b.finish)
    np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
    assert (a.hidden is None) == (b.hidden is None)
    if a.hidden is not None:
        np.testing.assert_allclose(a.hidden, b.hidden, atol=1e-4)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("way", "max_batch"),
    [
        *(("llama", 5), ("llama", 256), ("as on a gpu", 5), ("as on a gpu", 256), ("generic", 5)),
        *(("qwen3", 256), ("gpt2", 5), ("gpt-neox", 256), ("mistral-sliding", 5)),
    ],
)
def test_completion_equals_one_sampled_alone(way, max_batch, tokenizer, monkeypatch):
    model = make_model("llama" if way in ("as on a gpu", "generic") else way)
    if way == "as on a gpu":
        sampler = as_on_a_gpu(model, tokenizer, monkeypatch, max_batch=max_batch)
    else:
        sampler = LocalSampler(model, tokenizer, "cpu", max_batch=max_batch, use_llama_decoder=way != "generic")
    lines, sampling = make_chains(8, 3), Sampling(stop=("a",))
    alone = LocalSampler(model, tokenizer, "cpu")
    seen = []
    for come in run_chains(sampler.open_scheduler(sampling, hidden=HiddenState(1)), lines):
        for number, turn, completion in come:
            assert_same(completion, alone.sample([lines[number][turn]], sampling, hidden=HiddenState(1))[0])
            seen.append((number, turn))
    assert sorted(seen) == [(number, turn) for number in range(8) for turn in range(3)]
    if way != "mistral-sliding":  # cannot admit requests while others decode
        assert seen != sorted(seen, key=lambda place: place[1]), "chains must progress at different paces"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("way", ["exact", "as on a gpu", "generic"])
def test_same_requests_repeat_bit_for_bit(way, llama, tokenizer, monkeypatch):
    def play(sampler: LocalSampler) -> list:
        return [
            [(number, turn, c.tokens.tolist(), c.logprobs.tolist()) for number, turn, c in come]
            for come in run_chains(sampler.open_scheduler(Sampling(stop=("a",))), make_chains(9, 3))
        ]

    if way == "as on a gpu":
        fresh, used = (as_on_a_gpu(llama, tokenizer, monkeypatch) for _ in range(2))
    else:
        fresh, used = (LocalSampler(llama, tokenizer, "cpu", use_llama_decoder=way == "exact") for _ in range(2))
    used.sample([Request(p, seed=i) for i, p in enumerate(make_prompts(30, 3, 20, 60))], Sampling(max_tokens=40))
    assert play(fresh) == play(used) == play(fresh)


@pytest.mark.slow
def test_late_tokens_of_a_finished_request_do_not_reach_the_next(llama, tokenizer, monkeypatch):
    """With async decoding, a slot may get a new request while tokens of the finished one are still being copied."""
    sampler, alone = as_on_a_gpu(llama, tokenizer, monkeypatch), LocalSampler(llama, tokenizer, "cpu")
    stale_counts, waiting = [], Slots.find_still_active

    def watched(self, requests):
        slots_N = waiting(self, requests)
        stale_counts.append(int(self.active_S[requests[0]].sum()) - len(slots_N))
        return slots_N

    monkeypatch.setattr(Slots, "find_still_active", watched)
    rng, sampling = np.random.default_rng(1), Sampling(stop=("a", "b"), max_tokens=100)
    lines = [[Request(rng.integers(0, 256, 5), seed=10 * line + turn) for turn in range(5)] for line in range(8)]
    for come in run_chains(sampler.open_scheduler(sampling), lines):
        for number, turn, completion in come:
            assert_same(completion, alone.sample([lines[number][turn]], sampling)[0])
    assert sum(stale_counts) > 0, "no slot was reused while a decode was pending"


def test_decode_is_launched_before_prefill_results_are_read(llama, tokenizer, monkeypatch):
    sampler, did = as_on_a_gpu(llama, tokenizer, monkeypatch), []
    join, advance = LlamaDecodeBatch.prefill, LlamaDecodeBatch.decode

    def noted(what: str, read: Callable) -> Callable:
        did.append(what)
        return lambda: (did.append(f"read {what}"), read())[1]

    monkeypatch.setattr(LlamaDecodeBatch, "prefill", lambda *arguments: noted("join", join(*arguments)))
    monkeypatch.setattr(LlamaDecodeBatch, "decode", lambda *arguments: noted("steps", advance(*arguments)))
    scheduler = sampler.open_scheduler(Sampling())
    for limit in (2, 60, 60):
        scheduler.submit(Request(np.arange(3), seed=limit, max_tokens=limit))
    scheduler.wait()
    assert did[:2] == ["join", "steps"] and did.count("steps") == did.count("read steps") + 1
    did.clear()
    scheduler.submit(Request(np.arange(4), max_tokens=3))
    scheduler.wait()
    assert did[:5] == ["join", "steps", "read steps", "read join", "read steps"]
    scheduler.close()
    did.clear()
    assert scheduler.wait() == [] and did == [], "results of dropped requests are not read"


def test_weight_update_during_async_decode_restarts_sequences(tokenizer, monkeypatch):
    model, versions = make_model("llama"), [0]
    sampler = as_on_a_gpu(model, tokenizer, monkeypatch)
    scheduler = sampler.open_scheduler(WARM, activate_weights=lambda: versions[0])
    for request in LONG:
        scheduler.submit(request)
    found = dict(scheduler.wait())
    assert 0 in found and len(found) < len(LONG)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(-3)
    versions[0] = 1
    rest = finish(scheduler)
    assert {completion.version for completion in rest.values()} == {1}
    for i, completion in rest.items():
        assert_same(completion, LocalSampler(model, tokenizer, "cpu").sample([LONG[i]], WARM)[0])


def test_short_completions_return_while_a_long_one_decodes(llama, tokenizer):
    long = [Request(np.arange(5), seed=1, max_tokens=120)]
    short = [Request(np.arange(9), seed=turn, max_tokens=3) for turn in range(10)]
    order = []
    for come in run_chains(LocalSampler(llama, tokenizer, "cpu").open_scheduler(Sampling(temperature=0.8)), [long, short]):
        order += [number for number, _, _ in come]
    assert order == [1] * 10 + [0]


def test_finished_sequences_return_within_max_wait(llama, tokenizer, monkeypatch):
    """One line of short completions among many long ones: its idle slot costs little, but it must not wait."""
    steps = []
    advance = LlamaDecodeBatch.decode
    monkeypatch.setattr(LlamaDecodeBatch, "decode", lambda self, *rest: steps.append(1) or advance(self, *rest))
    lines = [[Request(np.arange(5), seed=i, max_tokens=120)] for i in range(40)]
    lines.append([Request(np.arange(9), seed=turn, max_tokens=2) for turn in range(2)])
    came = {}
    for come in run_chains(LocalSampler(llama, tokenizer, "cpu").open_scheduler(Sampling(temperature=0.8)), lines):
        came |= {(number, turn): len(steps) for number, turn, _ in come}
    assert came[40, 0] <= 2 + MAX_WAIT_STEPS and came[40, 1] <= 2 * (2 + MAX_WAIT_STEPS)


def test_equal_lengths_return_and_prefill_together(llama, tokenizer, monkeypatch):
    joined = []
    join = LlamaDecodeBatch.prefill
    monkeypatch.setattr(
        LlamaDecodeBatch, "prefill", lambda self, new, *rest: joined.append(len(new.slots_N)) or join(self, new, *rest)
    )
    lines = [
        [Request(np.arange(4 + i), seed=9 * i + turn, max_tokens=3 + (i + turn) % 4) for turn in range(3)] for i in range(16)
    ]
    come = [
        len(come) for come in run_chains(LocalSampler(llama, tokenizer, "cpu").open_scheduler(Sampling(temperature=0)), lines)
    ]
    assert sum(come) == sum(joined) == 48 and len(joined) <= 4


def test_free_slots_are_refilled(llama, tokenizer, monkeypatch):
    widths = []
    step = LlamaForward.decode_step
    monkeypatch.setattr(
        LlamaForward, "decode_step", lambda self, tokens, *rest: widths.append(len(tokens)) or step(self, tokens, *rest)
    )
    requests = [Request(p, seed=i, max_tokens=60 if i == 0 else 8) for i, p in enumerate(make_prompts(30))]
    LocalSampler(llama, tokenizer, "cpu", max_batch=4).sample(requests, Sampling(temperature=0.8))
    assert max(widths) == 4
    assert len(widths) < 100, "29 short sequences share three slots while the long one decodes in the fourth"


def test_batch_is_compacted_as_sequences_finish(llama, tokenizer, monkeypatch):
    widths = []
    step = LlamaForward.decode_step
    monkeypatch.setattr(
        LlamaForward, "decode_step", lambda self, tokens, *rest: widths.append(len(tokens)) or step(self, tokens, *rest)
    )
    requests = [Request(p, seed=i, max_tokens=5 if i % 5 == 0 else 40) for i, p in enumerate(make_prompts(32))]
    done = LocalSampler(llama, tokenizer, "cpu").sample(requests, Sampling(temperature=0.8))
    needed = sum(len(completion.tokens) - 1 for completion in done)  # the prefill samples each first token
    assert needed <= sum(widths) <= needed / 0.9


def test_stop_condition_cache_evicts_old_sets(llama, tokenizer):
    sampler = LocalSampler(llama, tokenizer, "cpu")
    stops = [("x", str(i)) for i in range(3 * MAX_STOP_SETS)]
    first = sampler.stop_conditions(stops[0])
    for stop in stops:
        sampler.stop_conditions(stop)
    assert sampler.stop_conditions.cache_info().currsize == MAX_STOP_SETS
    again = sampler.stop_conditions(stops[0])
    tokens = np.arange(40)
    assert again is not first and (again.find_candidates(tokens) == first.find_candidates(tokens)).all()


@pytest.mark.parametrize("cleans_up", [True, False])
def test_decode_all_equals_decode_and_strips_end_tokens(tokenizer, cleans_up, monkeypatch):
    monkeypatch.setattr(tokenizer, "clean_up_tokenization_spaces", cleans_up)  # decides which tokenizer decodes
    end, rng = 7, np.random.default_rng(0)
    stops = StopConditions(tokenizer, [end], (), len(tokenizer))
    texts = [rng.integers(40, 120, size=size) for size in (0, 1, 9, 30)]
    ended = [np.append(tokens, end) for tokens in texts]
    expected = [tokenizer.decode(tokens.tolist(), skip_special_tokens=True) for tokens in texts]
    assert len(expected[-1]) >= 30
    assert stops.decode_all(texts) == stops.decode_all(ended) == [stops.decode(tokens) for tokens in ended] == expected
    assert stops.decode_all([]) == []


def test_identical_waiting_prompts_are_prefilled_once(llama, tokenizer):
    sampler = LocalSampler(llama, tokenizer, "cpu")
    scheduler = sampler.open_scheduler(Sampling(temperature=0.8))
    scheduler.submit(Request(np.arange(7), seed=0, max_tokens=60))
    scheduler.submit(Request(np.arange(5), seed=1, max_tokens=2))
    scheduler.wait()
    for seed in range(6):
        scheduler.submit(Request(np.arange(20), seed=seed, max_tokens=2))
    while scheduler.wait():
        pass
    assert sampler.prefilled_tokens == 7 + 5 + 20


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("way", ["exact", "as on a gpu"])
def test_cache_grows_while_sequences_decode(way, tokenizer, monkeypatch):
    """The cache grows in slots and capacity while sequences are in it."""
    model = make_model("llama")
    model.config.max_position_embeddings = 1024
    sampler = as_on_a_gpu(model, tokenizer, monkeypatch) if way == "as on a gpu" else LocalSampler(model, tokenizer, "cpu")
    requests = [Request(np.arange(5), seed=3, max_tokens=90), Request(np.arange(6), seed=4, max_tokens=2)]
    later = [Request(np.arange(300) % 256, seed=5 + i, max_tokens=30) for i in range(5)]
    scheduler = sampler.open_scheduler(Sampling())
    request_ids = {scheduler.submit(request): request for request in requests}
    found = dict(scheduler.wait())
    before = scheduler.batch.cache.capacity, scheduler.batch.cache.slots
    request_ids |= {scheduler.submit(request): request for request in later}
    found |= dict(scheduler.wait())
    assert (scheduler.batch.cache.capacity, scheduler.batch.cache.slots) > before and scheduler.batch.cache.slots > before[1]
    found |= finish(scheduler)
    assert len(found[0].tokens) == 90, "it was active while the cache grew"
    for request_id, request in request_ids.items():
        assert_same(found[request_id], LocalSampler(model, tokenizer, "cpu").sample([request], Sampling())[0])


def test_wait_without_requests_returns_nothing(llama, tokenizer):
    scheduler = LocalSampler(llama, tokenizer, "cpu").open_scheduler(Sampling())
    assert scheduler.wait() == []
    scheduler.submit(Request(np.arange(3), max_tokens=2))
    with pytest.raises(TacitError, match="request 1 has 200 prompt tokens"):
        scheduler.submit(Request(np.zeros(200, np.int64)))
    assert [request_id for request_id, _ in scheduler.wait()] == [0] and scheduler.wait() == []
    scheduler.close()
    assert scheduler.wait() == []


def test_close_drops_unfinished_requests(llama, tokenizer):
    sampler = LocalSampler(llama, tokenizer, "cpu")
    scheduler = sampler.open_scheduler(Sampling())
    for limit in (2, 60):
        scheduler.submit(Request(np.arange(3), max_tokens=limit))
    assert len(scheduler.wait()) == 1
    batch = scheduler.batch
    scheduler.close()
    assert scheduler.wait() == [] and sampler.llama_decoder.spare is batch, "the batch's memory is reused"


WARM = Sampling(temperature=0.9)


def start(policy, requests: list[Request]) -> tuple[Scheduler, dict[int, Completion]]:
    """A scheduler whose first request has finished, and some others have not."""
    scheduler = policy.open_scheduler(WARM)
    for request in requests:
        scheduler.submit(request)
    found = dict(scheduler.wait())
    assert 0 in found and len(found) < len(requests)
    return scheduler, found


LONG = [Request(np.arange(4 + i), seed=i, max_tokens=2 if i == 0 else 60) for i in range(4)]


def finish(scheduler: Scheduler) -> dict[int, Completion]:
    found: dict[int, Completion] = {}
    while finished := scheduler.wait():
        found |= dict(finished)
    scheduler.close()
    return found


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}])
def test_completion_uses_and_reports_one_weight_version(make_policy, rows, settings):
    policy = make_policy(**settings)
    assert isinstance(policy, SchedulingSampler)
    before = policy.sample(LONG, WARM)
    scheduler, found = start(policy, LONG)
    at_once = list(found)
    policy.update(Batch.imitation(*rows), [Imitation()], 1e-2)
    found |= finish(scheduler)
    after = policy.sample(LONG, WARM)
    assert {c.version for c in before} == {0} and {c.version for c in after} == {1}
    for i, completion in found.items():
        expected = (before if i in at_once else after)[i]
        assert completion.version == expected.version
        assert_same(completion, expected)


def test_versions_count_updates_and_loads_per_adapter(make_policy, rows, tmp_path):
    policy = make_policy(lora_rank=4)
    other = policy.adapter("other")

    def versions() -> list[int]:
        return [p.sample(LONG[:1], Sampling())[0].version for p in (policy, other)]

    assert versions() == [0, 0]
    other.update(Batch.imitation(*rows), [Imitation()], 1e-2)
    assert versions() == [0, 1]
    policy.save(tmp_path / "all")
    policy.update(Batch.imitation(*rows), [Imitation()], 1e-2)
    policy.load(tmp_path / "all")
    assert versions() == [2, 2]
    policy.load_adapter(tmp_path / "all" / "adapters" / "other")
    assert versions() == [3, 2]


def test_two_adapters_alternate(make_policy, rows):
    """Each scheduler keeps its sequences while the other adapter is active, and during scoring and sampling."""
    policy = make_policy(lora_rank=4)
    other = policy.adapter("other")
    other.update(Batch.imitation(*rows), [Imitation()], 3e-2)
    schedulers = [start(player, LONG) for player in (policy, other)]
    between = other.sample(LONG, WARM)
    policy.logprobs(*rows)
    tables = [scheduler.batch for scheduler, _ in schedulers]
    assert None not in tables and tables[0] is not tables[1]
    rest = [found | finish(scheduler) for scheduler, found in schedulers]
    assert [c.tokens.tolist() for c in between] == [rest[1][i].tokens.tolist() for i in range(4)]
    for player, found in zip((policy, other), rest, strict=True):
        for i, request in enumerate(LONG):
            expected = player.logprobs([request.prompt], [found[i].tokens], 0.9)[0]
            np.testing.assert_allclose(found[i].logprobs, expected, atol=1e-4)
    assert rest[0][1].tokens.tolist() != rest[1][1].tokens.tolist()


def test_released_sequences_restart(make_policy):
    policy = make_policy()
    expected = policy.sample(LONG, WARM)
    scheduler, found = start(policy, LONG)
    free_memory(policy.engine.device)
    assert scheduler.batch is None
    found |= finish(scheduler)
    for i in range(4):
        assert_same(found[i], expected[i])


def test_release_frees_memory_at_once(llama, tokenizer):
    """Without waiting for Python's garbage collector."""
    sampler = LocalSampler(llama, tokenizer, "cpu")
    gc.collect()
    gc.disable()
    try:
        sampler.sample(LONG, WARM)
        assert sampler.llama_decoder is not None and sampler.llama_decoder.spare is not None
        references = [
            weakref.ref(thing)
            for thing in (sampler.llama_decoder, sampler.llama_decoder.spare, sampler.llama_decoder.spare.cache)
        ]
        sampler.release()
        assert [thing() for thing in references] == [None, None, None]
    finally:
        gc.enable()


def test_interrupt_loses_no_request(llama, tokenizer, monkeypatch):
    expected = LocalSampler(llama, tokenizer, "cpu").sample(LONG, WARM)
    sampler, advance, windows = as_on_a_gpu(llama, tokenizer, monkeypatch), LlamaDecodeBatch.decode, []

    def interrupted(*arguments):
        read = advance(*arguments)

        def while_it_is_read():
            windows.append(1)
            if len(windows) == 3:
                raise KeyboardInterrupt
            return read()

        return while_it_is_read

    monkeypatch.setattr(LlamaDecodeBatch, "decode", interrupted)
    scheduler = sampler.open_scheduler(WARM)
    for request in LONG:
        scheduler.submit(request)
    with pytest.raises(KeyboardInterrupt):
        scheduler.wait()
    found = finish(scheduler)
    for i, completion in enumerate(expected):
        assert_same(found[i], completion)


def fail_with_oom(times: int, work: Callable) -> Callable:
    left = [times]

    def tried(*arguments):
        left[0] -= 1
        if left[0] == 0:
            raise torch.OutOfMemoryError("no room")
        return work(*arguments)

    return tried


@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_device_error_loses_no_request(where, llama, tokenizer, monkeypatch):
    """After a failed prefill, sequences must not continue without their first token."""
    expected = LocalSampler(llama, tokenizer, "cpu").sample(LONG, WARM)
    sampler, work, calls = as_on_a_gpu(llama, tokenizer, monkeypatch), getattr(LlamaDecodeBatch, where), []

    def failing(*arguments):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("of the device")
        return work(*arguments)

    monkeypatch.setattr(LlamaDecodeBatch, where, failing)
    scheduler = sampler.open_scheduler(WARM)
    for request in LONG:
        scheduler.submit(request)
    with pytest.raises(RuntimeError, match="of the device"):
        scheduler.wait()
    found = finish(scheduler)
    for i, completion in enumerate(expected):
        assert_same(found[i], completion)


@pytest.mark.filterwarnings("ignore:out of GPU memory")
@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_oom_loses_no_request(where, llama, tokenizer, monkeypatch):
    expected = LocalSampler(llama, tokenizer, "cpu").sample(LONG * 2, Sampling())
    sampler = LocalSampler(llama, tokenizer, "cpu")
    scheduler = sampler.open_scheduler(Sampling())
    for request in LONG:
        scheduler.submit(request)
    found = dict(scheduler.wait())
    for request in LONG:
        scheduler.submit(request)
    monkeypatch.setattr(
        LlamaDecodeBatch, where, fail_with_oom(1 if where == "prefill" else 20, getattr(LlamaDecodeBatch, where))
    )
    found |= finish(scheduler)
    assert sampler.slot_budget.current < 256
    for i, completion in enumerate(expected):
        assert_same(found[i], completion)


def test_nonfinite_logits_raise_and_clear_the_cache(tokenizer):
    model = make_model("llama")
    sampler = LocalSampler(model, tokenizer, "cpu")
    expected = sampler.sample(LONG, WARM)
    scheduler, found = start(sampler, LONG)
    weight = model.model.layers[0].mlp.up_proj.weight
    healthy = weight.data.clone()
    weight.data.fill_(float("nan"))
    sampler.weights_changed()
    with pytest.raises(TacitError, match="not finite"):
        scheduler.wait()
    weight.data.copy_(healthy)
    sampler.weights_changed()
    for i, completion in [*enumerate(sampler.sample(LONG, WARM)), *found.items(), *finish(scheduler).items()]:
        assert_same(completion, expected[i])
