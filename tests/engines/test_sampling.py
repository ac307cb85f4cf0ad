"""The sampler against plain transformers: same log-probabilities, same greedy tokens, right frequencies, no batch effects."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from scipy.stats import chisquare
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.engines.local.graphs import StepGraphs
from tacit.engines.local.llama import LlamaForward
from tacit.engines.local.llama_decoding import LlamaDecoder
from tacit.engines.local.sampling import LocalSampler

END = 256
VOCABULARY = 260
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "eos_token_id": END,
    "pad_token_id": END,
    "bos_token_id": None,
}


def _llama3_rope() -> dict:
    return {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }


def _model(family: str):
    torch.manual_seed(0)
    without_kv = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
    makers = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
        "llama-untied-bias": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True)),
        "llama3-rope": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=_llama3_rope())),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES)),
        "mistral-sliding": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)),
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_positions=128,
                n_embd=32,
                n_layer=3,
                n_head=4,
                initializer_range=0.3,
                eos_token_id=END,
                bos_token_id=None,
                pad_token_id=END,
            )
        ),
        "gpt-neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**without_kv)),
    }
    model = makers[family]().eval()
    if family in ("qwen2", "qwen3", "llama-untied-bias"):  # biases and norms start trivial: make them matter
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.data += 0.3 * torch.randn_like(parameter)
    return model


FAMILIES = ["llama", "llama-untied-bias", "llama3-rope", "qwen2", "qwen3", "mistral", "mistral-sliding", "gpt2", "gpt-neox"]
LEAN = FAMILIES[:6]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, an end token, and a few unused ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<end>")
    fast.add_special_tokens({"additional_special_tokens": ["<a>", "<b>", "<c>"]})
    assert fast.eos_token_id == END and len(fast) == VOCABULARY
    return fast


@pytest.fixture(scope="session")
def llama():
    return _model("llama")


def _prompts(count: int, seed: int = 0, low: int = 3, high: int = 20) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, rng.integers(low, high)) for _ in range(count)]


def _requests(prompts, **options) -> list[Request]:
    return [Request(prompt, seed=100 + i, **options) for i, prompt in enumerate(prompts)]


def _plain_logprobs(model, prompt, tokens, temperature: float = 1.0) -> np.ndarray:
    """Every token's log-probability by one forward pass over prompt and completion, unbatched."""
    with torch.no_grad():
        logits = model(torch.from_numpy(np.concatenate([prompt, tokens]))[None]).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)[torch.arange(len(tokens)), torch.from_numpy(tokens)].numpy()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_plain_forward_pass(family, temperature, tokenizer):
    model = _model(family)
    sampler = LocalSampler(model, tokenizer, "cpu", prefill_tokens=40)
    requests = _requests(_prompts(9))
    completions = sampler.sample(requests, Sampling(temperature=temperature, top_p=0.95, top_k=200, max_tokens=12))
    for request, completion in zip(requests, completions, strict=True):
        expected = _plain_logprobs(model, request.prompt, completion.tokens, temperature)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
        assert completion.logprobs.dtype == np.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_what_generate_does(family, tokenizer):
    model = _model(family)
    requests = _requests(_prompts(6))
    completions = LocalSampler(model, tokenizer, "cpu").sample(requests, Sampling(temperature=0, max_tokens=15))
    for request, completion in zip(requests, completions, strict=True):
        prompt = torch.from_numpy(request.prompt)[None]
        output = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=15)
        assert output[0, len(request.prompt) :].tolist() == completion.tokens.tolist()
        expected = _plain_logprobs(model, request.prompt, completion.tokens)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("family", LEAN)
def test_lean_and_generic_paths_agree(family, tokenizer):
    model = _model(family)
    lean, generic = LocalSampler(model, tokenizer, "cpu"), LocalSampler(model, tokenizer, "cpu", lean=False)
    requests = _requests(_prompts(7))
    sampling = Sampling(max_tokens=10)
    for a, b in zip(lean.sample(requests, sampling, 2), generic.sample(requests, sampling, 2), strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
        np.testing.assert_allclose(a.hidden, b.hidden, atol=1e-4)
    assert lean._lean is not None and generic._lean is None


def test_a_window_that_slides_is_left_to_the_model(tokenizer):
    """Within the window the lean path is exact; beyond it only the model's own forward pass is."""
    sampler = LocalSampler(_model("mistral-sliding"), tokenizer, "cpu")
    assert sampler._decoder(8) is sampler._lean
    assert sampler._decoder(9) is sampler._generic


def _frequencies(sampler: LocalSampler, prompt: np.ndarray, sampling: Sampling, count: int) -> np.ndarray:
    completions = sampler.sample([Request(prompt, seed=i) for i in range(count)], sampling)
    return np.bincount([c.tokens[-1] for c in completions], minlength=VOCABULARY)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_frequencies_pass_a_chi_square_test(family, tokenizer):
    model = _model(family)
    prompt = _prompts(1)[0]
    with torch.no_grad():
        probs = (model(torch.from_numpy(prompt)[None]).logits[0, -1].double() / 1.5).softmax(-1).numpy()
    counts = _frequencies(LocalSampler(model, tokenizer, "cpu"), prompt, Sampling(temperature=1.5, max_tokens=1), 4000)
    common = probs * 4000 >= 5
    observed, expected = np.append(counts[common], counts[~common].sum()), np.append(probs[common], probs[~common].sum())
    assert common.sum() > 20
    assert chisquare(observed, expected * 4000).pvalue > 0.01


def test_later_tokens_are_independent_draws_too(llama, tokenizer):
    """The second token's noise is not the first's: given the first token, the second has the model's distribution."""
    prompt = _prompts(1)[0]
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


def test_top_k_and_top_p_keep_the_right_tokens_in_the_right_proportion(llama, tokenizer):
    prompt = _prompts(1)[0]
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
def test_a_sample_does_not_depend_on_its_batch(family, tokenizer):
    model = _model(family)
    requests = [Request(p, seed=i, max_tokens=3 + 4 * (i % 4)) for i, p in enumerate(_prompts(6) + _prompts(3))]
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
    prompt = _prompts(1)[0]
    a, b, c = LocalSampler(llama, tokenizer, "cpu").sample(
        [Request(prompt, seed=1), Request(prompt, seed=1), Request(prompt, seed=2)], Sampling(max_tokens=8)
    )
    assert a.tokens.tolist() == b.tokens.tolist() != c.tokens.tolist()


@pytest.mark.parametrize("lean", [True, False])
def test_identical_prompts_are_prefilled_once(lean, llama, tokenizer):
    a, b = _prompts(2)
    sampler = LocalSampler(llama, tokenizer, "cpu", lean=lean)
    sampler.sample(_requests([a, b, a, a, b]), Sampling(max_tokens=2))
    assert sampler.prefilled_tokens == len(a) + len(b)


def test_rows_that_end_leave_the_batch(llama, tokenizer, monkeypatch):
    widths = []
    step = LlamaForward.step
    monkeypatch.setattr(
        LlamaForward, "step", lambda self, tokens, *rest: widths.append(len(tokens)) or step(self, tokens, *rest)
    )
    requests = [Request(p, seed=i, max_tokens=2 if i % 2 else 9) for i, p in enumerate(_prompts(8))]
    completions = LocalSampler(llama, tokenizer, "cpu").sample(requests, Sampling(temperature=0))
    assert widths[0] == 8 and widths[-1] <= 4
    for request, completion in zip(requests, completions, strict=True):  # and nobody's cache was mixed up
        expected = _plain_logprobs(llama, request.prompt, completion.tokens)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)


def _end_likely(model, token: int, by: float):
    """The same model with one token made likelier, by a constant added to its logit."""
    head = torch.nn.Linear(model.config.hidden_size, VOCABULARY)
    head.weight.data, head.bias.data = model.lm_head.weight.data.clone(), torch.zeros(VOCABULARY)
    head.bias.data[token] += by
    model.lm_head = head
    return model.eval()


def test_the_end_token_is_kept_in_tokens_and_not_in_text(tokenizer):
    model = _end_likely(_model("llama"), END, 4.0)
    completions = LocalSampler(model, tokenizer, "cpu").sample(_requests(_prompts(20)), Sampling(max_tokens=6))
    stopped = [c for c in completions if c.finish == "stop"]
    assert stopped and any(c.finish == "length" for c in completions)
    for completion in completions:
        body = completion.tokens[:-1] if completion.finish == "stop" else completion.tokens
        assert (completion.tokens[-1] == END) == (completion.finish == "stop")
        assert END not in body and len(completion.logprobs) == len(completion.tokens)
        assert completion.text == tokenizer.decode(body.tolist(), skip_special_tokens=True)


def test_generation_settings_may_name_more_end_tokens(tokenizer):
    model = _end_likely(_model("llama"), 7, 4.0)
    model.generation_config.eos_token_id = [END, 7]
    completions = LocalSampler(model, tokenizer, "cpu").sample(_requests(_prompts(20)), Sampling(max_tokens=6))
    assert {int(c.tokens[-1]) for c in completions if c.finish == "stop"} >= {7}
    assert all(7 not in c.tokens[:-1] for c in completions)


@pytest.mark.parametrize("lean", [True, False])
def test_a_stop_string_may_span_tokens_and_is_kept(lean, llama, tokenizer):
    """What is written with a stop string is what is written without it, cut after the first token that completes it."""
    requests = _requests(_prompts(12))
    sampler = LocalSampler(llama, tokenizer, "cpu", lean=lean)
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


def test_limits_are_per_request(llama, tokenizer):
    requests = [Request(p, seed=i, max_tokens=i + 1 if i < 5 else None) for i, p in enumerate(_prompts(8))]
    completions = LocalSampler(llama, tokenizer, "cpu").sample(requests, Sampling(max_tokens=7))
    for i, completion in enumerate(completions):
        limit = i + 1 if i < 5 else 7
        assert len(completion.tokens) == limit if completion.finish == "length" else len(completion.tokens) <= limit


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_hidden_states_are_those_of_transformers(family, tokenizer):
    model = _model(family)
    requests = _requests(_prompts(5) * 2)
    sampler = LocalSampler(model, tokenizer, "cpu", prefill_tokens=30)
    for layer in range(-4, 4):
        completions = sampler.sample(requests, Sampling(max_tokens=1), layer=layer)
        for request, completion in zip(requests, completions, strict=True):
            with torch.no_grad():
                states = model(torch.from_numpy(request.prompt)[None], output_hidden_states=True).hidden_states
            np.testing.assert_allclose(completion.hidden, states[layer][0, -1].numpy(), atol=1e-4)
            assert completion.hidden.dtype == np.float32
    assert sampler.sample(requests[:1], Sampling(max_tokens=1))[0].hidden is None


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


def test_the_active_adapter_is_the_one_that_writes(tokenizer):
    peft = _with_adapters(_model("qwen3"))
    sampler = LocalSampler(peft, tokenizer, "cpu")
    requests = _requests(_prompts(4))
    seen = []

    def check() -> None:
        completions = sampler.sample(requests, Sampling(max_tokens=8))
        for request, completion in zip(requests, completions, strict=True):
            expected = _plain_logprobs(peft, request.prompt, completion.tokens)
            np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
        seen.append(np.concatenate([c.logprobs for c in completions])[:8].tolist())
        assert sampler._lean is not None

    for adapter in ("one", "two", "one"):
        peft.set_adapter(adapter)
        sampler.weights_changed()
        check()
    with peft.disable_adapter():
        sampler.weights_changed()
        check()
    assert seen[0] != seen[1] and seen[0] == seen[2] and seen[3] not in seen[:3]


def test_an_adapter_the_lean_path_does_not_know_goes_through_the_model(tokenizer):
    torch.manual_seed(0)
    config = LoraConfig(r=4, use_dora=True, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    peft = get_peft_model(_model("llama"), config).eval()
    sampler = LocalSampler(peft, tokenizer, "cpu")
    requests = _requests(_prompts(3))
    for request, completion in zip(requests, sampler.sample(requests, Sampling(max_tokens=5)), strict=True):
        expected = _plain_logprobs(peft, request.prompt, completion.tokens)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
    assert sampler._lean is None


@pytest.mark.parametrize("told", [True, False])
def test_changed_weights_are_used_at_once(told, tokenizer):
    model = _model("qwen3")
    sampler = LocalSampler(model, tokenizer, "cpu")
    requests = _requests(_prompts(3))
    sampler.sample(requests, Sampling(max_tokens=4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model(torch.from_numpy(requests[0].prompt)[None]).logits.square().mean().backward()
    optimizer.step()
    if told:
        sampler.weights_changed()
    for request, completion in zip(requests, sampler.sample(requests, Sampling(max_tokens=4)), strict=True):
        expected = _plain_logprobs(model, request.prompt, completion.tokens)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_bfloat16_stays_near_its_own_forward_pass(family, tokenizer):
    model = _model(family).to(torch.bfloat16)
    requests = _requests(_prompts(6))
    completions = LocalSampler(model, tokenizer, "cpu").sample(requests, Sampling(max_tokens=8))
    errors = []
    for request, completion in zip(requests, completions, strict=True):
        logits = model(torch.from_numpy(np.append(request.prompt, completion.tokens))[None]).logits[0].float()
        expected = logits[len(request.prompt) - 1 : -1].log_softmax(-1)
        errors.append(completion.logprobs - expected[np.arange(len(completion.tokens)), completion.tokens].detach().numpy())
    assert np.abs(np.concatenate(errors)).mean() < 0.1


def test_sampling_is_exactly_repeatable_whatever_came_before(llama, tokenizer):
    """Reused memory must not show: a resumed run has another history and needs the same bits."""
    requests = _requests(_prompts(5))
    fresh = LocalSampler(llama, tokenizer, "cpu").sample(requests, Sampling(max_tokens=9))
    used = LocalSampler(llama, tokenizer, "cpu")
    used.sample(_requests(_prompts(17, seed=3, low=20, high=60)), Sampling(max_tokens=30))
    for a, b in zip(fresh, used.sample(requests, Sampling(max_tokens=9)), strict=True):
        assert a.tokens.tolist() == b.tokens.tolist() and a.logprobs.tolist() == b.logprobs.tolist()


class _Recording:
    """What a CUDA graph does, without CUDA: replays the very step that was recorded, whoever asks."""

    def __init__(self, step):
        self.replay = step


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_fixed_shapes_of_a_gpu_give_the_same_completions(family, tokenizer, monkeypatch):
    """Padded widths and windows, a look every four tokens, and recorded steps used again by later waves."""

    def record(self, step):
        step()  # the trial that the real thing makes; the caller has to undo it
        return _Recording(step)

    monkeypatch.setattr(StepGraphs, "_record", record)
    model = _model(family)
    exact, fixed = LocalSampler(model, tokenizer, "cpu"), LocalSampler(model, tokenizer, "cpu", max_batch=19)
    fixed._lean = LlamaDecoder(model, prefill_tokens=50, fixed_shapes=True)
    fixed._lean.graphs.enabled = True
    recorded = []
    for seed in (0, 0, 5):
        requests = [Request(p, seed=i, max_tokens=1 + i % 23) for i, p in enumerate(_prompts(40, seed) + _prompts(9, seed))]
        for sampling in (Sampling(max_tokens=21, stop=("a", "b")), Sampling(temperature=0.5, top_p=0.8)):
            pairs = zip(exact.sample(requests, sampling, 1), fixed.sample(requests, sampling, 1), strict=True)
            for a, b in pairs:
                assert (a.tokens.tolist(), a.text, a.finish) == (b.tokens.tolist(), b.text, b.finish)
                np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
                np.testing.assert_allclose(a.hidden, b.hidden, atol=1e-4)
        recorded.append(len(fixed._lean.graphs))
    assert recorded[0] == recorded[1] > 2  # the second time nothing had to be recorded


def test_logits_that_are_not_numbers_are_an_error(tokenizer):
    model = _model("llama")
    sampler = LocalSampler(model, tokenizer, "cpu")
    requests = _requests(_prompts(3))
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
        (Request(np.arange(5)), Sampling(), 4, "layer 4 does not exist; this model has 0"),
        (Request(np.arange(5)), Sampling(), -5, "-4 to -1"),
        (Request(np.arange(5)), Sampling(temperature=-1.0), None, "temperature is -1.0"),
        (Request(np.arange(5)), Sampling(top_p=0.0), None, "top_p is 0.0"),
        (Request(np.arange(5)), Sampling(top_k=-2), None, "top_k is -2"),
        (Request(np.arange(5)), Sampling(stop=("",)), None, "stop string is empty"),
    ],
)
def test_impossible_requests_are_refused_with_the_reason(request_, sampling, layer, message, llama, tokenizer):
    with pytest.raises(TacitError, match=message):
        LocalSampler(llama, tokenizer, "cpu").sample([request_], sampling, layer)


def test_a_prompt_may_fill_the_context_exactly(llama, tokenizer):
    sampler = LocalSampler(llama, tokenizer, "cpu")
    (completion,) = sampler.sample([Request(np.arange(100), max_tokens=28)], Sampling(temperature=0))
    assert len(completion.tokens) == 28 or completion.finish == "stop"
    assert sampler.sample([], Sampling()) == []
