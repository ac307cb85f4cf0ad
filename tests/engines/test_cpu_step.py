"""The CPU decode step matches the reference layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.core.protocols import Sampling
from tacit.engines.local.fast import llama
from tacit.engines.local.fast.llama import CpuDecodeStep, LlamaForward
from tacit.engines.local.scheduler import LocalSampler
from tests.engines.random_models import SIZES, make_model, make_prompts, make_requests

SPOKEN = Sampling(max_tokens=9)


@pytest.fixture
def cpu_steps(monkeypatch):
    """The number of slots of each CPU step."""
    rows, step = [], CpuDecodeStep.__call__
    monkeypatch.setattr(CpuDecodeStep, "__call__", lambda self, h, *rest: rows.append(len(h)) or step(self, h, *rest))
    return rows


@pytest.mark.parametrize("family", ["llama", "llama-untied-bias", "qwen2"])
def test_cpu_step_samples_the_same_tokens_as_the_reference_step(family, tokenizer, cpu_steps, monkeypatch):
    model = make_model(family)
    for name, parameter in model.named_parameters():  # norms and biases start trivial: make them matter
        if parameter.ndim == 1:
            parameter.data.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    requests = make_requests(make_prompts(5))
    ours = LocalSampler(model, tokenizer, "cpu").sample(requests, SPOKEN)
    assert cpu_steps
    count = len(cpu_steps)
    monkeypatch.setattr(LlamaForward, "can_use_cpu_step", False)
    general = LocalSampler(model, tokenizer, "cpu").sample(requests, SPOKEN)
    assert len(cpu_steps) == count
    for a, b in zip(ours, general, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


@pytest.mark.parametrize("how", ["qk_norm", "bfloat16"])
def test_unsupported_models_use_the_reference_step(how, tokenizer, cpu_steps):
    model = make_model("qwen3") if how == "qk_norm" else make_model("llama").to(torch.bfloat16)
    LocalSampler(model, tokenizer, "cpu").sample(make_requests(make_prompts(3)), SPOKEN)
    assert not cpu_steps


def test_first_layer_table_gives_the_same_samples(tokenizer, cpu_steps, monkeypatch):
    requests = make_requests(make_prompts(5))
    known = LocalSampler(make_model("qwen2"), tokenizer, "cpu").sample(requests, SPOKEN)
    monkeypatch.setattr(llama, "QKV_TABLE_LIMIT", 0)
    computed = LocalSampler(make_model("qwen2"), tokenizer, "cpu").sample(requests, SPOKEN)
    assert cpu_steps
    for a, b in zip(known, computed, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-6)


@pytest.mark.parametrize("name", ["embed_tokens.weight", "layers.0.input_layernorm.weight", "layers.0.self_attn.k_proj.weight"])
def test_first_layer_table_is_rebuilt_when_weights_change(name, tokenizer, cpu_steps):
    """The embedding and the first norm are not copied, so only the table can be stale."""
    model, requests = make_model("llama-untied-bias"), make_requests(make_prompts(5))
    sampler = LocalSampler(model, tokenizer, "cpu")
    before = sampler.sample(requests, SPOKEN)
    with torch.no_grad():
        model.model.get_parameter(name).mul_(torch.linspace(0.5, 1.5, SIZES["hidden_size"]))
    after = sampler.sample(requests, SPOKEN)
    afresh = LocalSampler(model, tokenizer, "cpu").sample(requests, SPOKEN)
    assert cpu_steps
    assert any(not np.array_equal(a.logprobs, b.logprobs) for a, b in zip(before, after, strict=True))
    for a, b in zip(after, afresh, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_array_equal(a.logprobs, b.logprobs)
