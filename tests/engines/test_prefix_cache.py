"""Prefix cache: a prompt that extends the previous turn's reuses its KV cache and samples the same tokens as without it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from random_models import VOCABULARY, as_on_a_gpu, cache_as_on_a_gpu, make_model, plain_logprobs, with_adapter
from transformers import LlamaConfig, LlamaForCausalLM

from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.core.types import Completion, HiddenState
from tacit.engines.local.decoding import PrefillBatch
from tacit.engines.local.fast.cuda_graphs import PrefillBuffers, PrefillShape
from tacit.engines.local.fast.kv_cache import KeyValueCache
from tacit.engines.local.fast.llama import CachedPrefixes, LlamaForward
from tacit.engines.local.fast.llama_decoding import LlamaDecodeBatch, LlamaDecoder, Prefiller
from tacit.engines.local.scheduler import LocalSampler
from tacit.engines.local.slots import CachedPrefix, EngineRequest, Slots

WARM = Sampling(temperature=0.9)
EPISODES, TURNS = 5, 5

Next = Callable[[int, int, Request, Completion], np.ndarray]
"""(episode, turn, its request, its completion) -> the prompt of the next turn"""


@pytest.fixture
def by_token(monkeypatch):
    cache_as_on_a_gpu(monkeypatch)


@pytest.fixture
def prefill_cached(monkeypatch) -> list[np.ndarray | None]:
    """`cached_N` of every prefill."""
    seen: list[np.ndarray | None] = []
    join = LlamaDecodeBatch.prefill

    def watched(self, batch: PrefillBatch, *rest):
        seen.append(batch.cached_N)
        return join(self, batch, *rest)

    monkeypatch.setattr(LlamaDecodeBatch, "prefill", watched)
    return seen


def make_sampler(model, tokenizer, monkeypatch, **options) -> LocalSampler:
    return as_on_a_gpu(model, tokenizer, monkeypatch, varlen=True, **options)


def extend_prompts(rng: np.random.Generator) -> Next:
    """Append the completion and new tokens."""

    def further(episode: int, turn: int, request: Request, completion: Completion) -> np.ndarray:
        return np.concatenate([request.prompt, completion.tokens, rng.integers(0, 256, 3 + (episode + turn) % 5)])

    return further


def play(scheduler, further: Next, lockstep: bool, follows: bool = True) -> dict[tuple[int, int], tuple[Request, Completion]]:
    rng, found, waiting = np.random.default_rng(1), {}, {}

    def ask(episode: int, turn: int, prompt: np.ndarray) -> None:
        request = Request(prompt, 100 * episode + turn, max_tokens=2 + (3 * episode + turn) % 9)
        request = replace(request, episode=episode if follows else None)
        waiting[scheduler.submit(request)] = (episode, turn, request)

    for episode in range(EPISODES):
        ask(episode, 0, rng.integers(0, 256, 20 + episode))
    over = []
    while finished := scheduler.wait():
        over += [(*waiting.pop(request_id), completion) for request_id, completion in finished]
        if lockstep and waiting:
            continue
        for episode, turn, request, completion in over:
            found[episode, turn] = request, completion
            if turn + 1 < TURNS:
                ask(episode, turn + 1, further(episode, turn, request, completion))
        over = []
    assert not waiting and len(found) == EPISODES * TURNS
    return found


def check_as_alone(model, tokenizer, found, layer=None) -> None:
    alone = LocalSampler(model, tokenizer, "cpu")
    for request, completion in found.values():
        (expected,) = alone.sample([request], WARM, hidden=layer if layer is None else HiddenState(layer))
        assert completion.tokens.tolist() == expected.tokens.tolist()
        np.testing.assert_allclose(completion.logprobs, expected.logprobs, atol=1e-4)
        if layer is not None:
            np.testing.assert_allclose(completion.hidden, expected.hidden, atol=1e-4)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("family", "layer", "lockstep"),
    [
        *(("llama", None, True), ("llama", 1, False), ("llama-untied-bias", 1, True), ("qwen2", None, False)),
        *(("qwen3", 1, False), ("qwen3", None, True), ("adapted", 1, True), ("adapted", None, False)),
    ],
)
def test_completions_match_sampling_alone_and_prefill_is_shorter(
    family, layer, lockstep, tokenizer, monkeypatch, by_token, prefill_cached
):
    torch.manual_seed(0)
    model = with_adapter(make_model("llama")) if family == "adapted" else make_model(family)
    sampler = make_sampler(model, tokenizer, monkeypatch)
    found = play(
        sampler.open_scheduler(WARM, layer if layer is None else HiddenState(layer)),
        extend_prompts(np.random.default_rng(2)),
        lockstep,
    )
    check_as_alone(model, tokenizer, found, layer)
    known = [count for one in prefill_cached if one is not None for count in one]
    total = sum(len(request.prompt) for request, _ in found.values())
    assert len(known) >= EPISODES * (TURNS - 2), "some first turns are compacted away before prompts are known to grow"
    assert sampler.prefilled_tokens == total - sum(known) < 0.6 * total


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("lockstep", [True, False])
def test_cached_prefixes_are_as_accurate_as_full_prefills_on_hopper(rank, lockstep, tokenizer, prefill_cached):
    """With kernels, half precision, prompts longer than a block, and prefill graphs."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("only on a Hopper GPU are prompts read on")
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    config = LlamaConfig(**sizes, vocab_size=VOCABULARY, num_hidden_layers=3, initializer_range=0.1, eos_token_id=None)
    model = LlamaForCausalLM(config).eval()
    if rank:
        model = get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear", init_lora_weights=False)).eval()
        model = model.get_base_model()
    model = model.to(torch.bfloat16)
    wide = copy.deepcopy(model).float()
    sampler, far = LocalSampler(model.to("cuda"), tokenizer, "cuda"), {}

    def further(episode: int, turn: int, request: Request, completion: Completion) -> np.ndarray:
        more = np.random.default_rng([episode, turn]).integers(0, 256, 40 + 7 * episode + turn)
        return np.concatenate([request.prompt, completion.tokens, more])

    for follows in (True, False):
        prefill_cached.clear()
        for _ in range(4):  # the third one is captured
            found = play(sampler.open_scheduler(WARM), further, lockstep, follows)
        known = sum(int(one.sum()) for one in prefill_cached if one is not None)
        assert (known > 1000) == follows
        far[follows] = np.abs(
            np.concatenate([c.logprobs - plain_logprobs(wide, r.prompt, c.tokens, WARM.temperature) for r, c in found.values()])
        ).mean()
    assert far[True] < 1.5 * far[False] + 0.005 < 0.2


def test_prefill_graphs_extend_prefixes(tokenizer, monkeypatch, by_token, prefill_cached):
    torch.manual_seed(0)
    model, replays = make_model("llama"), []
    sampler = make_sampler(model, tokenizer, monkeypatch)
    scheduler = sampler.open_scheduler(WARM)
    run = Prefiller.prefill

    def watched(self, prompts, slots_N, source_N, cached_N, *arguments):
        if cached_N is not None:
            replays.append(len(self._graphs))
        return run(self, prompts, slots_N, source_N, cached_N, *arguments)

    monkeypatch.setattr(Prefiller, "prefill", watched)
    found = play(scheduler, extend_prompts(np.random.default_rng(2)), lockstep=True)
    check_as_alone(model, tokenizer, found)
    assert replays[-1] > 0, "no graph was captured"


def test_prefixes_of_old_weights_are_not_used(tokenizer, monkeypatch, by_token, prefill_cached):
    torch.manual_seed(0)
    model, version, rng = make_model("llama"), 0, np.random.default_rng(2)
    sampler = make_sampler(model, tokenizer, monkeypatch)
    prompt, found = rng.integers(0, 256, 30), []
    scheduler = sampler.open_scheduler(WARM, activate_weights=lambda: version)
    for turn in range(3):
        request = Request(prompt, turn, max_tokens=4, episode=0)
        scheduler.submit(request)
        ((_, completion),) = scheduler.wait()
        (expected,) = LocalSampler(model, tokenizer, "cpu").sample([request], WARM)
        found.append(completion.tokens.tolist() == expected.tokens.tolist())
        np.testing.assert_allclose(completion.logprobs, expected.logprobs, atol=1e-4)
        prompt = np.concatenate([prompt, completion.tokens])
        with torch.no_grad():
            model.model.layers[0].self_attn.k_proj.weight.mul_(1.5)
        sampler.weights_changed()
        version += 1
    assert all(found) and all(known is None for known in prefill_cached)


def test_prefix_ends_where_the_prompt_differs(tokenizer, monkeypatch, by_token, prefill_cached):
    torch.manual_seed(0)
    model, rng = make_model("llama"), np.random.default_rng(2)

    def other(episode: int, turn: int, request: Request, completion: Completion) -> np.ndarray:
        kept = len(request.prompt) - 2 if episode % 2 else 5  # most of it, or too little
        return np.concatenate([request.prompt[:kept], rng.integers(0, 256, 12)])

    found = play(make_sampler(model, tokenizer, monkeypatch).open_scheduler(WARM), other, lockstep=True)
    check_as_alone(model, tokenizer, found)
    known = [count for one in prefill_cached if one is not None for count in one]
    kept = {len(found[episode, turn][0].prompt) - 2 for episode in range(1, EPISODES, 2) for turn in range(TURNS)}
    assert len(known) >= EPISODES // 2 * (TURNS - 3) and set(known) <= kept


def test_prefixes_survive_compaction_and_cache_growth(tokenizer, monkeypatch, by_token, prefill_cached):
    """Sequences finish one by one, so the batch is compacted; prompts outgrow the cache."""
    torch.manual_seed(0)
    monkeypatch.setattr(LlamaDecoder, "pad_capacity", lambda self, columns: columns)
    model, rng, opened = make_model("llama"), np.random.default_rng(3), []
    open_cache = KeyValueCache.resize
    monkeypatch.setattr(KeyValueCache, "resize", lambda self, *sizes: opened.append(sizes[2:]) or open_cache(self, *sizes))

    def longer(episode: int, turn: int, request: Request, completion: Completion) -> np.ndarray:
        return np.concatenate([request.prompt, completion.tokens, rng.integers(0, 256, 30 if episode == turn else 4)])

    sampler = make_sampler(model, tokenizer, monkeypatch, max_batch=4)  # fewer than there are episodes
    found = play(sampler.open_scheduler(WARM), longer, lockstep=False)
    check_as_alone(model, tokenizer, found)
    assert any(opened), "the cache never grew while sequences were in it"
    assert any(known is not None for known in prefill_cached)


def test_batch_shrinks_as_episodes_end(tokenizer, monkeypatch, by_token, prefill_cached):
    torch.manual_seed(0)
    model, rng, widths, found = make_model("llama"), np.random.default_rng(4), [], {}
    scheduler = make_sampler(model, tokenizer, monkeypatch).open_scheduler(WARM)
    prompts = {episode: rng.integers(0, 256, 20) for episode in range(8)}
    for turn in range(5):
        waiting = {
            scheduler.submit(request): (episode, request)
            for episode, prompt in prompts.items()
            if (request := Request(prompt, 10 * episode + turn, max_tokens=5, episode=episode))
        }
        while finished := scheduler.wait():
            for request_id, completion in finished:
                episode, request = waiting.pop(request_id)
                found[episode, turn] = request, completion
                prompts[episode] = np.concatenate([request.prompt, completion.tokens, rng.integers(0, 256, 4)])
        widths.append(len(scheduler.slots))
        for ended in [episode for episode in prompts if episode % 4 != turn % 4 and len(prompts) > 2][:2]:
            del prompts[ended]
    check_as_alone(model, tokenizer, found)
    known = [len(one) for one in prefill_cached if one is not None]
    assert widths == [8, 6, 4, 2, 2] and known == [6, 4, 2, 2]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("why", ["by head", "the same bits again", "other numbers"])
def test_prefix_cache_is_disabled_if_unsupported(why, tokenizer, monkeypatch, prefill_cached, request):
    if why != "by head":
        request.getfixturevalue("by_token")
    torch.manual_seed(0)
    model = make_model("llama")
    sampler = make_sampler(model, tokenizer, monkeypatch)
    if why == "the same bits again":
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    if why == "other numbers":
        slots = KeyValueCache.flat_view
        monkeypatch.setattr(KeyValueCache, "flat_view", lambda self, layer: tuple(x + 1 for x in slots(self, layer)))
        with pytest.warns(UserWarning, match="gives different logits"):
            found = play(sampler.open_scheduler(WARM), extend_prompts(np.random.default_rng(2)), lockstep=True)
    else:
        found = play(sampler.open_scheduler(WARM), extend_prompts(np.random.default_rng(2)), lockstep=True)
    check_as_alone(model, tokenizer, found)
    assert all(known is None for known in prefill_cached)


def test_find_cached_prefix_matches_finished_slots_of_the_same_episode():
    slots = Slots(1)
    requests = [EngineRequest(request_id, np.arange(10) + 100 * request_id, 0, 4, request_id) for request_id in range(3)]
    slots.assign(requests)
    slots.tokens_SM[1, :4], slots.lengths_S[1] = [7, 8, 9, 6], 4
    request = EngineRequest(5, np.array([*range(100, 110), 7, 8, 9, 6, 1]), 0, 4, 1)
    assert slots.find_cached_prefix(request) is None, "the sequence is still active"
    slots.active_S[1] = False
    assert slots.find_cached_prefix(request) == CachedPrefix(1, 13), "the last token was never an input, so it is not cached"
    assert slots.find_cached_prefix(EngineRequest(5, request.prompt[:13], 0, 4, 1)) == CachedPrefix(1, 12), (
        "at least one prompt token must be computed"
    )
    assert (
        slots.find_cached_prefix(EngineRequest(5, request.prompt, 0, 4, 2)) is None
        and slots.find_cached_prefix(EngineRequest(5, request.prompt, 0, 4)) is None
    )
    slots.active_S[:] = False
    others = [
        EngineRequest(6, np.arange(4), 0, 4),
        request,
        EngineRequest(7, np.arange(4), 0, 4),
        EngineRequest(8, np.arange(4), 0, 4),
    ]
    slots_N, _ = slots.assign(others, prefixes=[None, CachedPrefix(1, 13), None, None])
    assert slots_N.tolist() == [0, 1, 2, 3]
    slots.episodes_S[:] = -1
    slots.active_S[1] = False
    assert slots.find_cached_prefix(EngineRequest(9, np.append(request.prompt, 1), 0, 4, 1)) is None, (
        "prefixes of sequences that were active at a weight update are stale"
    )


@pytest.mark.filterwarnings("ignore:out of GPU memory")
@pytest.mark.parametrize("first", [True, False])
def test_failed_prefill_loses_no_request(first, tokenizer, monkeypatch, by_token):
    """Requests with cached prefixes are prefilled first, then the others."""
    torch.manual_seed(0)
    model, rng, failed, join = make_model("llama"), np.random.default_rng(5), [], LlamaDecodeBatch.prefill

    def fails_once(self, batch, *rest):
        if turn and not failed and (batch.cached_N is not None) is first:
            failed.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return join(self, batch, *rest)

    monkeypatch.setattr(LlamaDecodeBatch, "prefill", fails_once)
    scheduler, found = make_sampler(model, tokenizer, monkeypatch).open_scheduler(WARM), {}
    prompts = {episode: rng.integers(0, 256, 20) for episode in range(4)}
    for turn in range(2):
        requests = {}
        for episode, prompt in prompts.items():
            request = Request(prompt, 10 * episode + turn, max_tokens=4, episode=episode)
            requests[scheduler.submit(request)] = request
        while finished := scheduler.wait():
            found |= {(turn, request_id): (requests[request_id], completion) for request_id, completion in finished}
        for episode in range(2):
            prompts[episode] = np.concatenate([prompts[episode], rng.integers(0, 256, 5)])
        for episode in range(2, 4):
            prompts[episode] = rng.integers(0, 256, 20)
    assert failed and len(found) == 8
    check_as_alone(model, tokenizer, found)


@pytest.mark.slow
def test_slots_are_kept_while_prompts_grow(tokenizer, monkeypatch, by_token):
    """Most completions are short and wait for two long ones: their slots are kept meanwhile."""
    torch.manual_seed(0)
    model, rng = make_model("llama"), np.random.default_rng(5)
    sampler = make_sampler(model, tokenizer, monkeypatch)
    for grows in (True, False):
        scheduler, waiting, over, total, before = (
            sampler.open_scheduler(WARM),
            {},
            dict.fromkeys(range(10), 0),
            0,
            sampler.prefilled_tokens,
        )
        prompts = {episode: rng.integers(0, 256, 24) for episode in over}
        ready = list(over)
        while ready or waiting:
            for episode in ready:
                limit = 40 if episode < 2 else 3
                waiting[scheduler.submit(Request(prompts[episode], episode, max_tokens=limit, episode=episode))] = episode
                total += len(prompts[episode])
            ready = []
            for request_id, _ in scheduler.wait():
                episode = waiting.pop(request_id)
                over[episode] += 1
                more = rng.integers(0, 256, 4 if grows else 24)
                prompts[episode] = np.concatenate([prompts[episode], more]) if grows else more
                if over[episode] < 5:
                    ready.append(episode)
        assert scheduler.prompts_grow is grows
        read = sampler.prefilled_tokens - before
        assert read < 0.4 * total if grows else read == total


@pytest.mark.parametrize("notify", [True, False])
def test_weight_change_invalidates_cached_prefixes(notify, tokenizer, monkeypatch, by_token):
    torch.manual_seed(0)
    model, prompt = make_model("llama"), np.arange(30)
    sampler = make_sampler(model, tokenizer, monkeypatch)
    scheduler = sampler.open_scheduler(WARM)  # its version never changes
    for turn in range(3):
        request = Request(prompt, turn, max_tokens=4, episode=0)
        scheduler.submit(request)
        ((_, completion),) = scheduler.wait()
        check_as_alone(model, tokenizer, {0: (request, completion)})
        prompt = np.concatenate([prompt, completion.tokens])
        with torch.no_grad():
            model.model.layers[0].self_attn.v_proj.weight.mul_(-1.5)
        if notify:
            sampler.weights_changed()


def test_submitted_prompt_array_is_copied(tokenizer, monkeypatch, by_token):
    torch.manual_seed(0)
    model, kept = make_model("llama"), np.arange(40)
    scheduler = make_sampler(model, tokenizer, monkeypatch).open_scheduler(WARM)
    for turn in range(3):
        request = Request(kept[: 30 + turn], turn, max_tokens=3, episode=0)
        scheduler.submit(request)
        ((_, completion),) = scheduler.wait()
        check_as_alone(model, tokenizer, {0: (request, completion)})
        kept[:] = np.arange(40) + 7 * (turn + 1)


def test_two_concurrent_requests_of_one_episode_share_one_prefix(tokenizer, monkeypatch, by_token, prefill_cached):
    torch.manual_seed(0)
    model, rng = make_model("llama"), np.random.default_rng(5)
    scheduler, found = make_sampler(model, tokenizer, monkeypatch).open_scheduler(WARM), {}
    prompts = [rng.integers(0, 256, 30), rng.integers(0, 256, 31)]
    for turn in range(3):
        requests = {}
        for i in range(3):  # the first episode twice
            request = Request(prompts[i // 2], 10 * turn + i, max_tokens=4, episode=i // 2)
            requests[scheduler.submit(request)] = request
        while finished := scheduler.wait():
            found |= {(turn, request_id): (requests[request_id], completion) for request_id, completion in finished}
        prompts = [np.concatenate([prompt, rng.integers(0, 256, 4)]) for prompt in prompts]
    check_as_alone(model, tokenizer, found)
    assert [len(one) for one in prefill_cached if one is not None] == [2, 2], "each slot's prefix serves one request"


@pytest.mark.parametrize("episode_id", [-1, 1 << 63])
def test_invalid_episode_is_an_error(episode_id, tokenizer):
    sampler = LocalSampler(make_model("llama"), tokenizer, "cpu")
    with pytest.raises(TacitError, match=f"request 0: episode must be .*, got {episode_id}"):
        sampler.open_scheduler(WARM).submit(Request(np.arange(3), episode=episode_id))


def test_padding_behind_a_prefix_is_finite(by_token):
    """It goes into the cache, where a mask cannot hide a NaN."""
    torch.manual_seed(0)
    forward = LlamaForward(make_model("llama"))
    cache = KeyValueCache(forward.shape)
    cache.resize(4, 64)
    rests, after = [np.arange(5), np.arange(3)], CachedPrefixes(np.array([9, 20]), np.array([0, 64]))
    fixed = PrefillBuffers(PrefillShape.fit(np.array([5, 3])), torch.device("cpu"))
    fixed.fill(rests, np.array([*range(9, 14), *range(84, 87)]), 14, after)
    with torch.inference_mode():
        sink = partial(cache.store, fixed.kv_index_N, None)
        logits, _ = forward.prefill_varlen(fixed.as_prompts(in_cache=True), None, sink, None, cache.flat_view)
    assert torch.isfinite(logits).all() and all(torch.isfinite(memory).all() for memory in cache.memory)
