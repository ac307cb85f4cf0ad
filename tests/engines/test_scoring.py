"""Scoring agrees with a plain transformers forward pass, whatever the packing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from random_models import LEAN, make_model, make_prompts

from tacit.core.errors import TacitError
from tacit.engines.local.model import LOGIT_ELEMENTS, LanguageModel
from tacit.engines.local.pooling import check_pooling, has_attention_pooling, last_token_attention
from tacit.engines.local.scoring import token_logprobs


@torch.no_grad()
def plain(policy, prompt: np.ndarray, completion: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """[T, V] log-probabilities of one row from the plain model, unpacked."""
    ids = torch.from_numpy(np.concatenate([prompt, completion]))[None]
    logits = policy.engine.model.hf(input_ids=ids).logits[0].float() / temperature
    return torch.log_softmax(logits, -1)[len(prompt) - 1 : -1].numpy()


@pytest.mark.parametrize("token_budget", [1, 64, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_match_a_plain_forward_pass(make_policy, rows, token_budget: int, temperature: float) -> None:
    policy = make_policy(token_budget=token_budget)
    for prompt, completion, found in zip(*rows, policy.logprobs(*rows, temperature), strict=True):
        expected = plain(policy, prompt, completion, temperature)[np.arange(len(completion)), completion]
        assert found.shape == (len(completion),) and found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_bfloat16_logprobs_are_near_float32(make_policy, rows) -> None:
    exact, rounded = make_policy().logprobs(*rows), make_policy(dtype="bfloat16").logprobs(*rows)
    assert max(np.abs(a - b).max(initial=0) for a, b in zip(exact, rounded, strict=True)) < 0.05


def test_distributions_match_a_plain_forward_pass(make_policy, rows) -> None:
    policy = make_policy(token_budget=64)
    whole, top = policy.distributions(*rows), policy.distributions(*rows, top_k=3)
    for prompt, completion, (ids, values), (top_ids, top_values) in zip(*rows, whole, top, strict=True):
        expected = plain(policy, prompt, completion)
        assert ids.shape == values.shape == expected.shape and top_ids.shape == (len(completion), 3)
        np.testing.assert_allclose(values, expected, atol=1e-5)
        assert (ids == np.arange(expected.shape[1])).all()
        np.testing.assert_allclose(top_values, np.sort(expected)[:, ::-1][:, :3], atol=1e-5)
        np.testing.assert_allclose(np.take_along_axis(expected, top_ids, 1), top_values, atol=1e-5)
    with pytest.raises(TacitError, match="top_k = 0 must be between 1"):
        policy.distributions(*rows, top_k=0)


@pytest.mark.parametrize("layer", [0, 1, -1, -2])
def test_pooled_hidden_states_match_transformers(make_policy, rows, layer: int) -> None:
    policy, prompts = make_policy(token_budget=64), rows[0]
    assert policy.poolings == ("last", "mean", "attention")
    found = {pooling: policy.hidden_states(prompts, layer, pooling) for pooling in ("last", "mean")}
    for i, prompt in enumerate(prompts):
        with torch.no_grad():
            output = policy.engine.model.hf(input_ids=torch.from_numpy(prompt)[None], output_hidden_states=True)
        states_SD = output.hidden_states[layer][0]
        np.testing.assert_allclose(found["last"][i], states_SD[-1], atol=1e-5)
        np.testing.assert_allclose(found["mean"][i], states_SD.mean(0), atol=1e-5)


@pytest.mark.parametrize("layer", [1, 2, -1, -2])
def test_attention_pooling_uses_the_layers_attention_weights(make_policy, rows, layer: int) -> None:
    """Against the last token's attention weights from transformers, averaged over heads."""
    policy, prompts = make_policy(token_budget=64), rows[0]
    found = policy.hidden_states(prompts, layer, "attention")
    hf = policy.engine.model.hf
    hf.set_attn_implementation("eager")
    for i, prompt in enumerate(prompts):
        with torch.no_grad():
            output = hf(input_ids=torch.from_numpy(prompt)[None], output_hidden_states=True, output_attentions=True)
        block = (layer if layer > 0 else layer + 3) - 1
        weights_S = output.attentions[block][0, :, -1].mean(0)
        np.testing.assert_allclose(found[i], weights_S @ output.hidden_states[layer][0], atol=1e-5)
    # The previous implementation (dot products of raw states) was almost equal to `last`.
    last = policy.hidden_states(prompts, layer, "last")
    cosine_N = (found * last).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(last, axis=1)
    assert cosine_N[[len(p) > 3 for p in prompts]].max() < 0.999


@pytest.mark.parametrize("family", LEAN)
def test_last_token_attention_matches_transformers_for_every_family(family) -> None:
    hf = make_model(family)
    hf.set_attn_implementation("eager")
    tokens = torch.from_numpy(np.stack([make_prompts(1, seed, 12, 13)[0] for seed in range(3)]))
    with torch.no_grad():
        output = hf(tokens, output_hidden_states=True, output_attentions=True)
        for layer in (1, 2, 3):
            lengths_R = torch.tensor([12, 7, 1])
            weights_RS = last_token_attention(hf, layer, output.hidden_states[layer - 1], lengths_R)
            for row, length in enumerate(lengths_R):
                expected_S = output.attentions[layer - 1][row, :, length - 1].mean(0)
                torch.testing.assert_close(weights_RS[row], expected_S, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "gpt-neox", "mistral-sliding"])
def test_attention_pooling_is_refused_for_unsupported_architectures(family) -> None:
    hf = make_model(family)
    assert not has_attention_pooling(hf)
    with pytest.raises(TacitError, match=r"this is a '\w+' model. Use pooling last or mean"):
        check_pooling(hf, 1, "attention")


def test_attention_pooling_is_refused_at_the_embedding_layer(make_policy, rows) -> None:
    policy = make_policy()
    for layer in (0, -3):
        with pytest.raises(TacitError, match="layer 0 is the embeddings"):
            policy.hidden_states(rows[0], layer, "attention")


def test_hidden_scan_is_one_pass_and_equals_separate_calls(make_policy, rows, monkeypatch) -> None:
    policy, prompts = make_policy(), rows[0]
    expected = {(i, p): policy.hidden_states(prompts, i, p) for i in (0, -1) for p in ("last", "mean")}
    passes = []
    original = LanguageModel.all_hidden_states
    monkeypatch.setattr(LanguageModel, "all_hidden_states", lambda self, ids: passes.append(len(ids)) or original(self, ids))
    found = policy.hidden_scan(prompts, [0, -1], ["last", "mean"])
    assert sum(passes) == len(prompts), "one forward pass per prompt"
    assert found.keys() == expected.keys()
    for key, states_ND in found.items():
        np.testing.assert_array_equal(states_ND, expected[key])


def test_unknown_layer_pooling_or_temperature_is_refused(make_policy, rows) -> None:
    policy = make_policy()
    with pytest.raises(TacitError, match="layer 3 does not exist"):
        policy.hidden_states(rows[0], 3)
    with pytest.raises(TacitError, match="Did you mean 'mean'"):
        policy.hidden_states(rows[0], 1, "maen")
    with pytest.raises(TacitError, match="temperature above 0"):
        policy.logprobs(*rows, temperature=0.0)


def test_empty_input_gives_empty_scores(make_policy) -> None:
    policy = make_policy()
    assert policy.logprobs([], []) == [] and policy.distributions([], []) == []
    assert policy.hidden_states([], 1).shape == (0, 32)


def test_chunked_logits_give_the_same_numbers_and_gradients(make_policy, monkeypatch) -> None:
    """The gradient through recomputed chunks equals that of all logits at once, entropies included."""
    model = make_policy().engine.model
    targets_T = torch.arange(2, 39)
    results = []
    for elements in (1 << 30, 5 * model.vocabulary):
        monkeypatch.setitem(LOGIT_ELEMENTS, "cpu", elements)
        hidden_TD = torch.randn(37, model.width, generator=torch.Generator().manual_seed(0)).requires_grad_()
        logprobs_T, entropy_T = token_logprobs(model, hidden_TD, targets_T, 0.8, "gradient")
        assert entropy_T is not None
        (logprobs_T.sum() + 0.3 * entropy_T.sum()).backward()
        results.append((logprobs_T.detach(), entropy_T.detach(), hidden_TD.grad))
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(whole, chunked, atol=1e-6, rtol=1e-5)


def test_entropy_of_a_uniform_distribution_is_the_log_of_its_size() -> None:
    flat_model = SimpleNamespace(logits=lambda h: torch.zeros(len(h), 8), chunk_tokens=100)
    logprobs_T, entropy_T = token_logprobs(flat_model, torch.zeros(3, 4), torch.tensor([0, 1, 7]), 1.0, "value")  # type: ignore[arg-type]
    np.testing.assert_allclose(entropy_T, np.log(8), rtol=1e-6)
    np.testing.assert_allclose(logprobs_T, -np.log(8), rtol=1e-6)


def test_scaled_or_capped_logits_are_supported_and_unknown_heads_refused() -> None:
    """Gemma caps its logits and Granite divides them: both are supported. An unknown head is refused."""
    from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

    shared = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    LanguageModel(Gemma2ForCausalLM(Gemma2Config(**shared, head_dim=8, num_key_value_heads=1)).eval())
    granite = GraniteForCausalLM(GraniteConfig(**shared, logits_scaling=4.0)).eval()
    LanguageModel(granite)
    whole = granite.forward
    granite.forward = lambda **inputs: SimpleNamespace(logits=whole(**inputs).logits * 2)
    with pytest.raises(TacitError, match="does not support"):
        LanguageModel(granite)
