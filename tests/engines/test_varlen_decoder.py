"""The varlen forward pass matches transformers: hidden states, gradients, adapters, scores and samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_models import make_model
from test_packed_decoder import build, check_own_states_and_gradients

from tacit.core.protocols import Request, Sampling
from tacit.core.types import HiddenState
from tacit.engines.local.fast import layers, projections
from tacit.engines.local.fast.attention import SequenceLayout, attend_varlen
from tacit.engines.local.fast.layers import EAGER_OPS, LayerOps
from tacit.engines.local.fast.llama import LlamaForward
from tacit.engines.local.fast.packed import VarlenDecoder
from tacit.engines.local.fast.projections import add_lora_product, fused_linear
from tacit.engines.local.model import LanguageModel
from tacit.engines.local.scheduler import LocalSampler


@pytest.fixture
def everywhere(monkeypatch) -> None:
    """Use the varlen path as on a GPU, with attention computed row by row in torch."""
    monkeypatch.setattr(VarlenDecoder, "can_run", staticmethod(lambda hf: True))
    monkeypatch.setattr(LlamaForward, "supports_varlen", True)


def test_varlen_attention_is_causal_and_separate_for_each_row():
    torch.manual_seed(0)
    queries, keys = np.array([2, 0, 3]), np.array([5, 2, 3])
    q, k, v = torch.randn(5, 4, 8), torch.randn(10, 2, 8), torch.randn(10, 2, 8)
    found = attend_varlen(q, k, v, SequenceLayout.of(queries, keys, torch.device("cpu")), 0.3)
    for row, (a, b, c, d) in enumerate(((0, 2, 0, 5), (0, 0, 5, 7), (2, 5, 7, 10))):
        for i in range(b - a):
            seen = slice(c, d - queries[row] + i + 1)
            for head in range(4):
                weights = (k[seen, head // 2] @ q[a + i, head] * 0.3).softmax(0)
                torch.testing.assert_close(found[a + i, head], weights @ v[seen, head // 2])


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "Mistral"])
@pytest.mark.parametrize("kept", [range(7), [1, 4], [0, 3, 6], [5, 2], [2, 3], [4]])
def test_hidden_states_and_gradients_match_transformers(everywhere, family: str, kept) -> None:
    model = LanguageModel(build(family, **({"sliding_window": None} if family == "Mistral" else {})))
    assert isinstance(model.packed_decoder, VarlenDecoder)
    check_own_states_and_gradients(model, kept)


def test_wrong_compiled_op_is_replaced_by_the_eager_op(monkeypatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda piece: lambda *arguments: piece(*arguments) * 1.5)
    monkeypatch.setattr(layers.CompiledOp, "failed", False)
    x = torch.randn(5, 8)
    with pytest.warns(UserWarning, match="differs from the eager one"):
        assert torch.equal(LayerOps(compiled=True).swiglu(x), EAGER_OPS.swiglu(x))


@pytest.mark.parametrize("targets", [("q_proj", "v_proj", "down_proj"), ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")])
def test_fused_linear_matches_peft_adapters(targets) -> None:
    import peft

    hf = build("Qwen2")
    peft.get_peft_model(hf, peft.LoraConfig(r=3, lora_alpha=5, target_modules=list(targets), init_lora_weights=False))
    layer, x = hf.model.layers[0], torch.randn(6, 32, requires_grad=True)
    attention = layer.self_attn
    for modules in ((attention.q_proj, attention.k_proj, attention.v_proj), (layer.mlp.gate_proj, layer.mlp.up_proj)):
        gradients = []
        for y in (fused_linear(x, *modules), torch.cat([module(x) for module in modules], -1)):
            found = torch.autograd.grad(y.square().sum(), [x, *(p for m in modules for p in m.parameters() if p.requires_grad)])
            gradients.append((y, *found))
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("adapted", [(True,), (True, True), (False, True, True), (True, False, True)])
@pytest.mark.parametrize("frozen", [True, False])
def test_lora_gradient_matches_autograd_and_finite_differences(monkeypatch, adapted, frozen) -> None:
    """Layers of several widths, ranks and scales, one with a bias; in float64, against autograd and finite differences."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, learns: bool = True) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(learns)

    x, parts = draw(7, 6), []
    for i, has in enumerate(adapted):
        loras = [(draw(2 + i, 6), draw(5 + i, 2 + i), 0.5 + i)] if has else []
        bias = draw(5 + i, learns=not frozen) if i == 1 else None
        parts.append((draw(5 + i, 6, learns=not frozen), bias, loras))
    monkeypatch.setattr(projections, "fusable_tensors", lambda modules: parts)
    read = [x, *(t for w, b, loras in parts for t in (w, b, *(t for a, c, _ in loras for t in (a, c))) if t is not None)]
    read = [t for t in read if t.requires_grad]
    zeros = torch.zeros(5, dtype=torch.float64)
    plain = [
        x @ w.t() + (zeros[:1] if b is None else b) + sum(scale * (x @ a.t() @ c.t()) for a, c, scale in loras)
        for w, b, loras in parts
    ]
    pull = draw(7, sum(len(w) for w, _, _ in parts), learns=False)
    y, expected = fused_linear(x), torch.cat(plain, -1)
    torch.testing.assert_close(y, expected)
    gradients = torch.autograd.grad(expected, read, pull)
    torch.testing.assert_close(torch.autograd.grad(y, read, pull), gradients)
    # In the first layer the input has no gradient.
    torch.testing.assert_close(torch.autograd.grad(fused_linear(x.detach()), read[1:], pull), gradients[1:])
    assert torch.autograd.gradcheck(lambda *_: fused_linear(x), read)


def test_lora_product_and_gradients_are_accurate_in_bfloat16() -> None:
    """A transposed x, and odd ranks."""
    generator = torch.Generator().manual_seed(0)
    layout = features, ranks, _ = [64, 72], [5, 3], [1 / 3, 1.7]
    shapes = ((40, 300), (136, 40), (136,), (8, 40), *zip(features, ranks, strict=True))
    read = [(torch.randn(shape, generator=generator) / shape[-1] ** 0.5).bfloat16().requires_grad_() for shape in shapes]
    found = []
    for tensors in (read, [t.detach().double().requires_grad_() for t in read]):
        x, weight, bias, lora_A, *lora_B = tensors
        y = projections.FusedLoRALinear.apply(x.t(), weight, bias, lora_A, layout, *lora_B)
        found.append((y, *torch.autograd.grad(y.square().sum(), tensors)))
    for ours, exact in zip(*found, strict=True):
        assert ours.dtype == torch.bfloat16 and (ours.double() - exact).norm() < 0.006 * exact.norm()


@pytest.mark.parametrize("shape", [(32,), (6, 32), (2, 3, 32), (0, 32)])
def test_lora_product_supports_any_batch_shape(shape) -> None:
    x, weight, lora_A, lora_B = torch.randn(shape), torch.randn(9, 32), torch.randn(3, 32), torch.randn(9, 3)
    y = add_lora_product(torch.nn.functional.linear(x, weight), torch.nn.functional.linear(x, lora_A), lora_B)
    torch.testing.assert_close(y, x @ (weight + lora_B @ lora_A).t(), atol=1e-4, rtol=1e-4)


def test_lora_dropout_matches_the_module() -> None:
    import peft

    hf = build("Llama")
    peft.get_peft_model(hf, peft.LoraConfig(r=3, lora_dropout=0.5, target_modules=["q_proj"], init_lora_weights=False))
    module, x = hf.model.layers[0].self_attn.q_proj, torch.randn(6, 32)
    module.train()
    torch.manual_seed(4)
    dropped = fused_linear(x, module)
    torch.manual_seed(4)
    assert torch.equal(dropped, module(x))
    assert not torch.allclose(dropped, fused_linear(x, module.eval()))


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}])
def test_updates_scores_and_hidden_states_match_the_padded_pass(everywhere, monkeypatch, make_policy, rows, settings) -> None:
    """Against the padded pass, for two token budgets."""
    from tacit.core.credit import Batch
    from tacit.losses.surrogates import Imitation

    prompts, completions = rows
    batch, moved = Batch.imitation(prompts, completions), []
    policies = [make_policy(token_budget=80, **settings), make_policy(token_budget=30, **settings)]
    assert all(isinstance(policy.engine.model.packed_decoder, VarlenDecoder) for policy in policies)
    monkeypatch.setattr(VarlenDecoder, "can_run", staticmethod(lambda hf: False))
    policies.append(make_policy(token_budget=80, **settings))
    assert not isinstance(policies[-1].engine.model.packed_decoder, VarlenDecoder)
    for policy in policies:
        states = policy.hidden_scan(prompts, [0, 1, 2, -1], ["last", "mean"])
        policy.update(batch, [Imitation()], 1e-2)
        moved.append((policy.logprobs(prompts, completions), states))
    for other, states in moved[1:]:
        for ours, theirs in zip(moved[0][0], other, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-3)
        for place, states_ND in states.items():
            np.testing.assert_allclose(moved[0][1][place], states_ND, atol=1e-5, err_msg=str(place))


@pytest.mark.parametrize("family", ["llama", "llama-untied-bias", "llama3-rope", "qwen2", "qwen3"])
def test_varlen_prefill_samples_the_same_tokens(monkeypatch, tokenizer, family) -> None:
    model = make_model(family).eval()
    rng = np.random.default_rng(3)
    long, short = rng.integers(0, 256, size=17), rng.integers(0, 256, size=2)
    prompts = [long, short, long, rng.integers(0, 256, size=9), short, long]
    requests = [Request(prompt, seed=i) for i, prompt in enumerate(prompts)]
    found = []
    for varlen in (True, False):
        monkeypatch.setattr(LlamaForward, "supports_varlen", varlen)
        sampler = LocalSampler(model, tokenizer, "cpu", max_batch=4, prefill_tokens=24)
        found.append(sampler.sample(requests, Sampling(max_tokens=9), hidden=HiddenState(1)))
        assert sampler.llama_decoder is not None and sampler.llama_decoder.varlen is varlen
    for ours, theirs in zip(*found, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-4)
        np.testing.assert_allclose(ours.hidden, theirs.hidden, atol=1e-4)


def test_eager_ops_are_used_if_compilation_fails(monkeypatch) -> None:
    def refuse(piece):
        def fail(*arguments):
            raise RuntimeError("no C compiler found\nand much more")

        return fail

    monkeypatch.setattr(torch, "compile", refuse)
    monkeypatch.setattr(layers.CompiledOp, "failed", False)
    compiled, x, weight = LayerOps(compiled=True), torch.randn(5, 8), torch.randn(8)
    with pytest.warns(UserWarning, match="runs uncompiled, more slowly: no C compiler found$"):
        assert torch.equal(compiled.rms_norm(x, weight, 1e-6), EAGER_OPS.rms_norm(x, weight, 1e-6))
    assert torch.equal(compiled.swiglu(x), EAGER_OPS.swiglu(x))


@pytest.mark.slow
def test_compiled_op_is_compiled_once_for_any_number_of_rows(monkeypatch) -> None:
    from torch._dynamo.testing import CompileCounter

    counter, compile_it = CompileCounter(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda piece: compile_it(piece, backend=counter))
    monkeypatch.setattr(layers.CompiledOp, "failed", False)
    compiled, weight = LayerOps(compiled=True), torch.randn(8, requires_grad=True)
    for rows in (40, 41, 1000, 7):
        x = torch.randn(rows, 8, requires_grad=True)
        found, expected = compiled.rms_norm(x, weight, 1e-6), EAGER_OPS.rms_norm(x, weight, 1e-6)
        torch.testing.assert_close(found, expected)
        found.sum().backward()
    assert counter.frame_count == 1
