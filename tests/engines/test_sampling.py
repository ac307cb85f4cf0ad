"""The sampler: frequencies, independence of the batch, stop conditions and limits, shared prefill, errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_models import END, VOCABULARY, make_model, make_prompts, make_requests, plain_logprobs
from scipy.stats import chisquare

from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.core.types import HiddenState
from tacit.engines.local.fast.llama import LlamaForward
from tacit.engines.local.scheduler import LocalSampler


@pytest.fixture(scope="session")
def llama():
    return make_model("llama")


def _frequencies(sampler: LocalSampler, prompt: np.ndarray, sampling: Sampling, count: int) -> np.ndarray:
    completions = sampler.sample([Request(prompt, seed=i) for i in range(count)], sampling)
    return np.bincount([c.tokens[-1] for c in completions], minlength=VOCABULARY)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_token_frequencies_pass_a_chi_square_test(family, tokenizer):
    model = make_model(family)
    prompt = make_prompts(1)[0]
    with torch.no_grad():
        probs = (model(torch.from_numpy(prompt)[None]).logits[0, -1].double() / 1.5).softmax(-1).numpy()
    counts = _frequencies(LocalSampler(model, tokenizer, "cpu"), prompt, Sampling(temperature=1.5, max_tokens=1), 4000)
    common = probs * 4000 >= 5
    observed, expected = np.append(counts[common], counts[~common].sum()), np.append(probs[common], probs[~common].sum())
    assert common.sum() > 20
    assert chisquare(observed, expected * 4000).pvalue > 0.01


def test_second_token_is_independent_of_the_first_tokens_noise(llama, tokenizer):
    """Given the first token, the second has the model's distribution: each token has its own noise."""
    prompt = make_prompts(1)[0]
    sampler = LocalSampler(llama, tokenizer, "cpu")
    completions = sampler.sample([Request(prompt, seed=i) for i in range(4000)], Sampling(top_k=2, max_tokens=2))
    first = np.bincount([c.tokens[0] for c in completions]).argmax()
    second = [c.tokens[1] for c in completions if c.tokens[0] == first]
    with torch.no_grad():
        top = llama(torch.from_numpy(np.append(prompt, first))[None]).logits[0, -1].softmax(-1).topk(2)
    expected = (top.values / top.values.sum()).double().numpy()
    observed = [second.count(int(token)) for token in top.indices]
    assert sum(observed) == len(second)
    assert chisquare(observed, expected / expected.sum() * len(second)).pvalue > 0.01


def test_top_k_and_top_p_truncate_and_renormalize(llama, tokenizer):
    prompt = make_prompts(1)[0]
    with torch.no_grad():
        probs = (llama(torch.from_numpy(prompt)[None]).logits[0, -1].double() / 2).softmax(-1).numpy()
    order = np.argsort(-probs)
    sampler = LocalSampler(llama, tokenizer, "cpu")
    nucleus = order[: np.searchsorted(probs[order].cumsum(), 0.6) + 1]
    top = order[:5]
    both = top[: np.searchsorted((probs[top] / probs[top].sum()).cumsum(), 0.6) + 1]
    for kept, options in ((nucleus, {"top_p": 0.6}), (top, {"top_k": 5}), (both, {"top_k": 5, "top_p": 0.6})):
        counts = _frequencies(sampler, prompt, Sampling(temperature=2.0, max_tokens=1, **options), 2000)
        assert set(np.flatnonzero(counts)) <= set(kept)
        expected = probs[kept] / probs[kept].sum() * 2000
        assert chisquare(counts[kept], expected).pvalue > 0.01


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_completion_does_not_depend_on_its_batch(family, tokenizer):
    model = make_model(family)
    requests = [Request(p, seed=i, max_tokens=3 + 4 * (i % 4)) for i, p in enumerate(make_prompts(6) + make_prompts(3))]
    sampling = Sampling(max_tokens=10, stop=("a",))
    together = LocalSampler(model, tokenizer, "cpu").sample(requests, sampling)
    alone = [LocalSampler(model, tokenizer, "cpu").sample([r], sampling)[0] for r in requests]
    order = np.random.default_rng(1).permutation(len(requests))
    permuted = LocalSampler(model, tokenizer, "cpu").sample([requests[i] for i in order], sampling)
    narrow = LocalSampler(model, tokenizer, "cpu", max_batch=2, prefill_tokens=25).sample(requests, sampling)
    for i, reference in enumerate(together):
        for other in (alone[i], permuted[list(order).index(i)], narrow[i]):
            assert reference.tokens.tolist() == other.tokens.tolist()
            assert (reference.text, reference.finish) == (other.text, other.finish)
            np.testing.assert_allclose(reference.logprobs, other.logprobs, atol=1e-5)


def test_different_seeds_differ_and_equal_seeds_agree(llama, tokenizer):
    prompt = make_prompts(1)[0]
    a, b, c = LocalSampler(llama, tokenizer, "cpu").sample(
        [Request(prompt, seed=1), Request(prompt, seed=1), Request(prompt, seed=2)], Sampling(max_tokens=8)
    )
    assert a.tokens.tolist() == b.tokens.tolist() != c.tokens.tolist()


@pytest.mark.parametrize("llama_decoder", [True, False])
def test_identical_prompts_are_prefilled_once(llama_decoder, llama, tokenizer):
    a, b = make_prompts(2)
    sampler = LocalSampler(llama, tokenizer, "cpu", use_llama_decoder=llama_decoder)
    sampler.sample(make_requests([a, b, a, a, b]), Sampling(max_tokens=2))
    assert sampler.prefilled_tokens == len(a) + len(b)


def test_finished_sequences_leave_the_batch(llama, tokenizer, monkeypatch):
    widths = []
    step = LlamaForward.decode_step
    monkeypatch.setattr(
        LlamaForward, "decode_step", lambda self, tokens, *rest: widths.append(len(tokens)) or step(self, tokens, *rest)
    )
    requests = [Request(p, seed=i, max_tokens=2 if i % 2 else 9) for i, p in enumerate(make_prompts(8))]
    completions = LocalSampler(llama, tokenizer, "cpu").sample(requests, Sampling(temperature=0))
    assert widths[0] == 8 and widths[-1] <= 4
    for request, completion in zip(requests, completions, strict=True):  # and the caches were not mixed up
        expected = plain_logprobs(llama, request.prompt, completion.tokens)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)


def _end_likely(model, token: int, by: float):
    """The same model with a constant added to the logit of one token."""
    head = torch.nn.Linear(model.config.hidden_size, VOCABULARY)
    head.weight.data, head.bias.data = model.lm_head.weight.data.clone(), torch.zeros(VOCABULARY)
    head.bias.data[token] += by
    model.lm_head = head
    return model.eval()


def test_end_token_is_kept_in_tokens_but_not_in_text(tokenizer):
    model = _end_likely(make_model("llama"), END, 4.0)
    completions = LocalSampler(model, tokenizer, "cpu").sample(make_requests(make_prompts(20)), Sampling(max_tokens=6))
    stopped = [c for c in completions if c.finish == "stop"]
    assert stopped and any(c.finish == "length" for c in completions)
    for completion in completions:
        body = completion.tokens[:-1] if completion.finish == "stop" else completion.tokens
        assert (completion.tokens[-1] == END) == (completion.finish == "stop")
        assert END not in body and len(completion.logprobs) == len(completion.tokens)
        assert completion.text == tokenizer.decode(body.tolist(), skip_special_tokens=True)


def test_end_tokens_of_the_generation_config_are_used(tokenizer):
    model = _end_likely(make_model("llama"), 7, 4.0)
    model.generation_config.eos_token_id = [END, 7]
    completions = LocalSampler(model, tokenizer, "cpu").sample(make_requests(make_prompts(20)), Sampling(max_tokens=6))
    assert {int(c.tokens[-1]) for c in completions if c.finish == "stop"} >= {7}
    assert all(7 not in c.tokens[:-1] for c in completions)


@pytest.mark.parametrize("llama_decoder", [True, False])
def test_stop_string_may_span_tokens_and_is_kept_in_the_text(llama_decoder, llama, tokenizer):
    """With a stop string, the completion is the one without it, cut after the first token that completes the string."""
    requests = make_requests(make_prompts(12))
    sampler = LocalSampler(llama, tokenizer, "cpu", use_llama_decoder=llama_decoder)
    free = sampler.sample(requests, Sampling(max_tokens=16))
    stop = next(c.text[4:6] for c in free if c.text[4:6].isascii() and c.text[4:6].isalnum())
    cut = sampler.sample(requests, Sampling(max_tokens=16, stop=(stop, "never appears")))
    assert any(stop in c.text for c in cut)
    for a, b in zip(free, cut, strict=True):
        ends = [n for n in range(1, len(a.tokens) + 1) if stop in tokenizer.decode(a.tokens[:n].tolist())]
        length = ends[0] if ends else len(a.tokens)
        assert b.tokens.tolist() == a.tokens[:length].tolist()
        assert b.finish == ("stop" if ends or a.finish == "stop" else "length")
        assert not ends or b.text.endswith(stop)


def test_max_tokens_is_per_request(llama, tokenizer):
    requests = [Request(p, seed=i, max_tokens=i + 1 if i < 5 else None) for i, p in enumerate(make_prompts(8))]
    completions = LocalSampler(llama, tokenizer, "cpu").sample(requests, Sampling(max_tokens=7))
    for i, completion in enumerate(completions):
        limit = i + 1 if i < 5 else 7
        assert len(completion.tokens) == limit if completion.finish == "length" else len(completion.tokens) <= limit


def test_sampling_repeats_bit_for_bit_after_other_requests(llama, tokenizer):
    """Reused memory must not change results: a resumed run has another history and needs the same bits."""
    requests = make_requests(make_prompts(5))
    fresh = LocalSampler(llama, tokenizer, "cpu").sample(requests, Sampling(max_tokens=9))
    used = LocalSampler(llama, tokenizer, "cpu")
    used.sample(make_requests(make_prompts(17, seed=3, low=20, high=60)), Sampling(max_tokens=30))
    for a, b in zip(fresh, used.sample(requests, Sampling(max_tokens=9)), strict=True):
        assert a.tokens.tolist() == b.tokens.tolist() and a.logprobs.tolist() == b.logprobs.tolist()


def test_nonfinite_logits_are_refused_and_the_sampler_recovers(tokenizer):
    model = make_model("llama")
    sampler = LocalSampler(model, tokenizer, "cpu")
    requests = make_requests(make_prompts(3))
    before = sampler.sample(requests, Sampling(max_tokens=4))
    weight = model.model.layers[0].mlp.up_proj.weight
    healthy = weight.data.clone()
    weight.data.fill_(float("nan"))
    sampler.weights_changed()
    with pytest.raises(TacitError, match="not finite"):
        sampler.sample(requests, Sampling(max_tokens=4))
    weight.data.copy_(healthy)
    sampler.weights_changed()
    after = sampler.sample(requests, Sampling(max_tokens=4))
    assert [c.tokens.tolist() for c in before] == [c.tokens.tolist() for c in after]


@pytest.mark.parametrize(
    ("request_", "sampling", "layer", "message"),
    [
        (Request(np.zeros(0, np.int64)), Sampling(), None, "no tokens"),
        (Request(np.arange(100)), Sampling(max_tokens=29), None, "context of 128"),
        (Request(np.arange(5), max_tokens=0), Sampling(), None, "max_tokens of request 0 is 0"),
        (Request(np.array([5, VOCABULARY])), Sampling(), None, "outside 0..259"),
        (Request(np.arange(5)), Sampling(), 4, "layer 4 does not exist: this model has layers 0"),
        (Request(np.arange(5)), Sampling(), -5, "−4"),
        (Request(np.arange(5)), Sampling(temperature=-1.0), None, "temperature is -1.0"),
        (Request(np.arange(5)), Sampling(top_p=0.0), None, "top_p is 0.0"),
        (Request(np.arange(5)), Sampling(top_k=-2), None, "top_k is -2"),
        (Request(np.arange(5)), Sampling(stop=("",)), None, "stop string is empty"),
    ],
)
def test_impossible_requests_are_refused_with_the_reason(request_, sampling, layer, message, llama, tokenizer):
    with pytest.raises(TacitError, match=message):
        LocalSampler(llama, tokenizer, "cpu").sample([request_], sampling, None if layer is None else HiddenState(layer))


def test_prompt_and_completion_may_fill_the_context_exactly(llama, tokenizer):
    sampler = LocalSampler(llama, tokenizer, "cpu")
    (completion,) = sampler.sample([Request(np.arange(100), max_tokens=28)], Sampling(temperature=0))
    assert len(completion.tokens) == 28 or completion.finish == "stop"
    assert sampler.sample([], Sampling()) == []
