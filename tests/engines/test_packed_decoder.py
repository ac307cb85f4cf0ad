"""The packed forward pass matches transformers, with and without shared prompts, and computes nothing twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.engines.local.fast import packed as fast_packed
from tacit.engines.local.model import LanguageModel
from tacit.engines.local.packing import make_packed_batch, make_padded_batch, plan_packed_batches
from tacit.engines.local.update import training_mode

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}


def build(family: str, **changes):
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **changes}, initializer_range=0.2)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def grouped_rows() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Two groups that share a prompt, two rows alone, completions of one to seven tokens."""
    rng = np.random.default_rng(0)
    tokens = lambda n: rng.integers(1, 64, size=n)  # noqa: E731
    a, b = tokens(9), tokens(4)
    return [a, tokens(6), b, a, tokens(1), b, a], [tokens(n) for n in (5, 3, 1, 1, 7, 2, 4)]


def check_own_states_and_gradients(model: LanguageModel, kept) -> None:
    """Compares the packed pass with the model's own over the `kept` rows."""
    prompts, completions = grouped_rows()
    rows = np.array(kept)
    weights_TD = None
    found = []
    for packed in (make_packed_batch(prompts, completions, rows), make_padded_batch(prompts, completions, rows, 0)):
        hidden_TD = model.forward_hidden(packed)
        if weights_TD is None:
            weights_TD = torch.randn(hidden_TD.shape, generator=torch.Generator().manual_seed(1))
        (hidden_TD * weights_TD).sum().backward()
        found.append((hidden_TD.detach(), {n: p.grad.clone() for n, p in model.hf.named_parameters() if p.grad is not None}))
        model.hf.zero_grad()
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=1e-4)
    assert found[0][1].keys() == found[1][1].keys()
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][name], atol=1e-4, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "Mistral"])
@pytest.mark.parametrize("kept", [range(7), [1, 4], [0, 3, 6], [0, 6, 3], [5, 2], [2, 3], [4]])
def test_hidden_states_and_gradients_match_transformers(family: str, kept) -> None:
    model = LanguageModel(build(family, **({"sliding_window": None} if family == "Mistral" else {})))
    assert model.packed_decoder is not None
    check_own_states_and_gradients(model, kept)


def test_shared_prompts_are_computed_once() -> None:
    prompts, completions = grouped_rows()
    packed = make_packed_batch(prompts, completions, np.array([0, 3, 6]))
    assert packed.num_tokens == 9 + (5 - 1) + (1 - 1) + (4 - 1)
    assert packed.positions_N.tolist() == [*range(9), *range(9, 13), *range(9, 12)]


@pytest.mark.parametrize("drops_out, expected", [(False, 6), (True, 12)])
def test_repeated_tokens_are_projected_once_in_the_first_layer(make_policy, monkeypatch, drops_out, expected) -> None:
    """Not with LoRA dropout, where each position has its own mask."""
    policy = make_policy(lora_rank=2, lora_dropout=0.5)
    model, read = policy.engine.model, []
    together = fast_packed.concat_linear
    monkeypatch.setattr(fast_packed, "concat_linear", lambda x, *modules: read.append(len(x)) or together(x, *modules))
    prompts, completions = [np.array([5, 6, 7, 5, 6, 7])] * 2, [np.array([8, 9, 8, 9]), np.array([9, 10, 9, 10])]
    packed = make_packed_batch(prompts, completions, np.array([0, 1]))
    with training_mode(model, policy.engine.settings, dropout=drops_out, seed=0):
        model.forward_hidden(packed)
    assert packed.num_tokens == 12 and read[0] == expected and read[2] == 12


def test_docstring_example_of_make_packed_batch() -> None:
    packed = make_packed_batch([np.array([5, 6]), np.array([5, 6])], [np.array([7, 8]), np.array([9])], np.array([0, 1]))
    assert packed.tokens_N.tolist() == [5, 6, 7]
    assert packed.source_T.tolist() == [1, 2, 1] and packed.targets_T.tolist() == [7, 8, 9]
    assert packed.first_R.tolist() == [0, 2]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=30), st.integers(1, 80))
def test_every_row_is_in_exactly_one_batch_within_the_token_budget(rows: list[tuple[int, int]], budget: int) -> None:
    prompts = [np.full(3 * which + 2, which) for which, _ in rows]
    completions = [np.ones(length, int) for _, length in rows]
    cut = plan_packed_batches(prompts, completions, np.arange(len(rows)), budget)
    assert sorted(np.concatenate(cut).tolist()) == list(range(len(rows)))
    for part in cut:
        assert len(part) == 1 or make_packed_batch(prompts, completions, part).num_tokens <= budget


@pytest.mark.parametrize(
    "family, changes",
    [("Llama", {"hidden_act": "gelu"}), ("Mistral", {"sliding_window": 4}), ("Gemma2", {"head_dim": 8}), ("GPT2", {})],
)
def test_unsupported_architectures_use_their_own_forward_pass(family: str, changes) -> None:
    if family == "GPT2":
        import transformers

        hf = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2)).eval()
    else:
        hf = build(family, **changes)
    model = LanguageModel(hf)
    assert model.packed_decoder is None
    prompts, completions = grouped_rows()
    for part in model.plan_micro_batches(prompts, completions, np.arange(7), 20):
        packed = model.make_micro_batch(prompts, completions, part, 0)
        assert model.forward_hidden(packed).shape == (len(packed.targets_T), 32)


def test_modified_llama_is_detected_and_not_packed() -> None:
    hf = build("Llama")
    original = hf.model.layers[1].mlp.forward
    hf.model.layers[1].mlp.forward = lambda x: original(x) * 1.5
    assert LanguageModel(hf).packed_decoder is None


def test_policy_uses_the_packed_decoder_without_gradient_checkpointing(make_policy) -> None:
    assert make_policy().engine.model.packed_decoder is not None
    assert make_policy(lora_rank=2, dtype="bfloat16").engine.model.packed_decoder is not None
    assert make_policy(gradient_checkpointing=True).engine.model.packed_decoder is None
