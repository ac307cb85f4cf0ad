"""The sampler against plain transformers, for every family: same log-probabilities, greedy tokens and hidden states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from random_models import FAMILIES, LEAN, as_on_a_gpu, make_model, make_prompts, make_requests, plain_logprobs

from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.core.types import HiddenState
from tacit.engines.local.fast import projections
from tacit.engines.local.pooling import attention_padded, attention_varlen, pool_padded, pool_varlen
from tacit.engines.local.scheduler import LocalSampler


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_logprobs_match_a_plain_forward_pass(family, temperature, tokenizer):
    model = make_model(family)
    sampler = LocalSampler(model, tokenizer, "cpu", prefill_tokens=40)
    requests = make_requests(make_prompts(9))
    completions = sampler.sample(requests, Sampling(temperature=temperature, top_p=0.95, top_k=200, max_tokens=12))
    for request, completion in zip(requests, completions, strict=True):
        expected = plain_logprobs(model, request.prompt, completion.tokens, temperature)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
        assert completion.logprobs.dtype == np.float32


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_match_generate(family, tokenizer):
    model = make_model(family)
    requests = make_requests(make_prompts(6))
    completions = LocalSampler(model, tokenizer, "cpu").sample(requests, Sampling(temperature=0, max_tokens=15))
    for request, completion in zip(requests, completions, strict=True):
        prompt = torch.from_numpy(request.prompt)[None]
        output = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=15)
        assert output[0, len(request.prompt) :].tolist() == completion.tokens.tolist()
        expected = plain_logprobs(model, request.prompt, completion.tokens)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("family", LEAN)
def test_llama_and_generic_decoders_agree(family, tokenizer):
    model = make_model(family)
    llama, generic = LocalSampler(model, tokenizer, "cpu"), LocalSampler(model, tokenizer, "cpu", use_llama_decoder=False)
    requests = make_requests(make_prompts(7))
    sampling = Sampling(max_tokens=10)
    for a, b in zip(
        llama.sample(requests, sampling, HiddenState(2)), generic.sample(requests, sampling, HiddenState(2)), strict=True
    ):
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
        np.testing.assert_allclose(a.hidden, b.hidden, atol=1e-4)
    assert llama.llama_decoder is not None and generic.llama_decoder is None


def test_sliding_window_uses_the_generic_decoder(tokenizer):
    """Within the window the Llama decoder is exact; beyond it only the model's own forward pass is."""
    sampler = LocalSampler(make_model("mistral-sliding"), tokenizer, "cpu")
    sampler.refresh_weights()
    assert sampler.select_decoder(8) is sampler.llama_decoder
    assert sampler.select_decoder(9) is sampler.generic_decoder


def expected_state(model, prompt, layer: int, pooling: str) -> np.ndarray:
    with torch.no_grad():
        output = model(torch.from_numpy(prompt)[None], output_hidden_states=True, output_attentions=True)
    states_TD = output.hidden_states[layer][0]
    if pooling == "attention":
        return (output.attentions[layer - 1][0, :, -1].mean(0) @ states_TD).numpy()
    return (states_TD[-1] if pooling == "last" else states_TD.mean(0)).numpy()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("pooling", ["last", "mean", "attention"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_hidden_states_match_transformers(family, pooling, tokenizer):
    model = make_model(family)
    model.set_attn_implementation("eager")  # the only one that returns attention weights
    requests = make_requests(make_prompts(5) * 2)
    sampler = LocalSampler(model, tokenizer, "cpu", prefill_tokens=30)
    if pooling == "attention" and family == "gpt2":
        with pytest.raises(TacitError, match="attention weights"):
            sampler.open_scheduler(Sampling(max_tokens=1), HiddenState(1, pooling))
        return
    layers = sampler.num_layers
    for layer in range(1 if pooling == "attention" else 0, layers + 1):
        for number in (layer, layer - layers - 1):
            completions = sampler.sample(requests, Sampling(max_tokens=1), hidden=HiddenState(number, pooling))
            for request, completion in zip(requests, completions, strict=True):
                expected = expected_state(model, request.prompt, layer, pooling)
                np.testing.assert_allclose(completion.hidden, expected, atol=1e-4)
                assert completion.hidden.dtype == np.float32
    assert sampler.sample(requests[:1], Sampling(max_tokens=1))[0].hidden is None


def test_packed_prompts_are_pooled_like_padded_ones():
    torch.manual_seed(0)
    lengths, scale = [3, 1, 7], 0.3
    cu_seqlens, last_N = torch.tensor([0, 3, 4, 11], dtype=torch.int32), torch.tensor(lengths) - 1
    q, k, h = torch.randn(11, 4, 8), torch.randn(11, 2, 8), torch.randn(11, 16)

    def pad(x):
        return torch.nn.utils.rnn.pad_sequence(x.split(lengths), batch_first=True)

    for pooling in ("last", "mean", "attention"):
        padded = pool_padded(pad(h), last_N, pooling, lambda: attention_padded(pad(q), pad(k), last_N, scale))
        packed = pool_varlen(h, cu_seqlens, pooling, lambda: attention_varlen(q, k, cu_seqlens, scale))
        torch.testing.assert_close(packed, padded)


def test_pooling_over_a_prompt_does_not_use_the_prefix_cache(tokenizer):
    """The states of cached tokens are not kept, so a prompt that grows is prefilled whole."""
    model = make_model("llama")
    sampler, first = LocalSampler(model, tokenizer, "cpu"), make_prompts(1)[0]
    scheduler = sampler.open_scheduler(Sampling(max_tokens=4), HiddenState(1, "mean"))
    prompt = first
    for _ in range(3):
        scheduler.submit(Request(prompt, seed=1, episode=5))
        ((_, completion),) = scheduler.wait()
        np.testing.assert_allclose(completion.hidden, expected_state(model, prompt, 1, "mean"), atol=1e-4)
        prompt = np.concatenate([prompt, completion.tokens, first[:2]])


def _with_adapters(model):
    options = {
        "lora_alpha": 16,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    }
    peft = get_peft_model(model, LoraConfig(r=4, **options), adapter_name="one")
    peft.add_adapter("two", LoraConfig(r=8, **options))
    torch.manual_seed(1)
    for name, parameter in peft.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.2 * torch.randn_like(parameter)
    return peft.eval()


@pytest.mark.parametrize("notify", [True, False])
def test_active_adapter_is_used(notify, tokenizer, monkeypatch):
    peft = _with_adapters(make_model("qwen3"))
    sampler = LocalSampler(peft, tokenizer, "cpu")
    requests = make_requests(make_prompts(4))
    seen = []

    def check() -> None:
        completions = sampler.sample(requests, Sampling(max_tokens=8))
        for request, completion in zip(requests, completions, strict=True):
            expected = plain_logprobs(peft, request.prompt, completion.tokens)
            np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
        seen.append(np.concatenate([c.logprobs for c in completions])[:8].tolist())
        assert sampler.llama_decoder is not None

    def change() -> None:
        if notify:
            sampler.weights_changed()

    for adapter in ("one", "two", "one"):
        peft.set_adapter(adapter)
        change()
        check()
    with peft.disable_adapter():
        change()
        check()
    change()
    lora_B = peft.base_model.model.model.layers[0].self_attn.q_proj.lora_B["one"]
    lora_B.weight = torch.nn.Parameter(2 * lora_B.weight.detach())
    check()
    assert seen[0] != seen[1] and seen[0] == seen[2] and seen[3] not in seen[:3] and seen[4] not in seen[:4]
    sampler.refresh_weights()
    with monkeypatch.context() as patch:  # no search for adapters as long as nothing has changed
        patch.setattr(projections, "split_lora", lambda *_: pytest.fail("looked for"))
        sampler.refresh_weights()


def test_unsupported_adapter_uses_the_generic_decoder(tokenizer):
    torch.manual_seed(0)
    config = LoraConfig(r=4, use_dora=True, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    peft = get_peft_model(make_model("llama"), config).eval()
    sampler = LocalSampler(peft, tokenizer, "cpu")
    requests = make_requests(make_prompts(3))
    for request, completion in zip(requests, sampler.sample(requests, Sampling(max_tokens=5)), strict=True):
        expected = plain_logprobs(peft, request.prompt, completion.tokens)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
    assert sampler.llama_decoder is None


@pytest.mark.parametrize("notify", [True, False])
def test_changed_weights_are_used_immediately(notify, tokenizer):
    model = make_model("qwen3")
    sampler = LocalSampler(model, tokenizer, "cpu")
    requests = make_requests(make_prompts(3))
    sampler.sample(requests, Sampling(max_tokens=4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model(torch.from_numpy(requests[0].prompt)[None]).logits.square().mean().backward()
    optimizer.step()
    if notify:
        sampler.weights_changed()
    for request, completion in zip(requests, sampler.sample(requests, Sampling(max_tokens=4)), strict=True):
        expected = plain_logprobs(model, request.prompt, completion.tokens)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_bfloat16_logprobs_are_near_a_plain_forward_pass(family, tokenizer):
    model = make_model(family).to(torch.bfloat16)
    requests = make_requests(make_prompts(6))
    completions = LocalSampler(model, tokenizer, "cpu").sample(requests, Sampling(max_tokens=8))
    errors = []
    for request, completion in zip(requests, completions, strict=True):
        logits = model(torch.from_numpy(np.append(request.prompt, completion.tokens))[None]).logits[0].float()
        expected = logits[len(request.prompt) - 1 : -1].log_softmax(-1)
        errors.append(completion.logprobs - expected[np.arange(len(completion.tokens)), completion.tokens].detach().numpy())
    assert np.abs(np.concatenate(errors)).mean() < 0.1


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_fixed_shapes_give_the_same_completions(family, tokenizer, monkeypatch):
    """With padded batch and cache sizes, results read every four tokens, and graphs reused by later schedulers."""
    model = make_model(family)
    exact, fixed = LocalSampler(model, tokenizer, "cpu"), as_on_a_gpu(model, tokenizer, monkeypatch, max_batch=19)
    recorded = []
    for seed in (0, 0, 5):
        requests = [
            Request(p, seed=i, max_tokens=1 + i % 23) for i, p in enumerate(make_prompts(40, seed) + make_prompts(9, seed))
        ]
        for sampling in (Sampling(max_tokens=21, stop=("a", "b")), Sampling(temperature=0.5, top_p=0.8)):
            pairs = zip(
                exact.sample(requests, sampling, HiddenState(1)), fixed.sample(requests, sampling, HiddenState(1)), strict=True
            )
            for a, b in pairs:
                assert (a.tokens.tolist(), a.text, a.finish) == (b.tokens.tolist(), b.text, b.finish)
                np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
                np.testing.assert_allclose(a.hidden, b.hidden, atol=1e-4)
        recorded.append(len(fixed.llama_decoder.spare.graphs))
    assert recorded[0] == recorded[1] > 2  # nothing is captured the second time


def test_cache_shrinks_after_long_prompts(tokenizer, monkeypatch):
    """The positions of unused slots were those of the long prompts, beyond the smaller cache."""
    model = make_model("llama")
    model.config.max_position_embeddings = 1024
    exact, fixed = LocalSampler(model, tokenizer, "cpu"), as_on_a_gpu(model, tokenizer, monkeypatch)
    for prompts in (make_prompts(8, low=300, high=310), make_prompts(5)):
        requests = make_requests(prompts, max_tokens=6)
        for a, b in zip(exact.sample(requests, Sampling()), fixed.sample(requests, Sampling()), strict=True):
            assert a.tokens.tolist() == b.tokens.tolist()
