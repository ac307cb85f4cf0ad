"""A decode step that takes place on the spot computes what the general one does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.core.protocols import Sampling
from tacit.engines.local.passes.llama import LlamaForward
from tacit.engines.local.passes.small_step import SmallStep
from tacit.engines.local.sampling.sampler import LocalSampler
from tests.engines.random_models import make_model, make_prompts, make_requests

SPOKEN = Sampling(max_tokens=9)


@pytest.fixture
def small_steps(monkeypatch):
    """How many rows each step on the spot had."""
    rows, step = [], SmallStep.__call__
    monkeypatch.setattr(SmallStep, "__call__", lambda self, h, *rest: rows.append(len(h)) or step(self, h, *rest))
    return rows


@pytest.mark.parametrize("family", ["llama", "llama-untied-bias", "qwen2"])
def test_it_writes_what_the_general_step_writes(family, tokenizer, small_steps, monkeypatch):
    model = make_model(family)
    for name, parameter in model.named_parameters():  # norms and biases begin as ones and zeros
        if parameter.ndim == 1:
            parameter.data.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    requests = make_requests(make_prompts(5))
    ours = LocalSampler(model, tokenizer, "cpu").sample(requests, SPOKEN)
    assert small_steps
    taken = len(small_steps)
    monkeypatch.setattr(LlamaForward, "_steps_small", lambda self: False)
    general = LocalSampler(model, tokenizer, "cpu").sample(requests, SPOKEN)
    assert len(small_steps) == taken
    for a, b in zip(ours, general, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


@pytest.mark.parametrize("how", ["qk_norm", "bfloat16"])
def test_other_models_go_the_general_way(how, tokenizer, small_steps):
    model = make_model("qwen3") if how == "qk_norm" else make_model("llama").to(torch.bfloat16)
    LocalSampler(model, tokenizer, "cpu").sample(make_requests(make_prompts(3)), SPOKEN)
    assert not small_steps
