"""A bfloat16 model's logits are float32, not rounded to bfloat16; gradients do not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from tacit.core.protocols import Request, Sampling
from tacit.engines.local import decoding
from tacit.engines.local.fast import projections as module
from tacit.engines.local.fast.projections import has_float32_output, linear_float32


def test_linear_float32_gives_float32_logits_and_bfloat16_gradients():
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 32, generator=generator).to(torch.bfloat16).requires_grad_() for n in (5, 40))
    logits = linear_float32(x, weight)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, x.float() @ weight.float().t())
    assert not torch.equal(logits, logits.bfloat16().float())
    pull = torch.randn(5, 40, generator=generator)
    found = torch.autograd.grad(logits, (x, weight), pull)
    expected = torch.autograd.grad(linear(x, weight).float(), (x, weight), pull)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours, theirs)
    assert (
        torch.autograd.grad(linear_float32(x, weight.detach()).sum(), x)[0].shape == x.shape
    )  # a frozen head, as with adapters


def test_fallback_rounds_logits_to_bfloat16(monkeypatch):
    x = torch.randn(3, 16).to(torch.bfloat16)
    monkeypatch.setattr(module, "has_float32_output", lambda device, dtype: False)
    on_a_gpu = type("Weight", (), {"dtype": torch.bfloat16, "device": torch.device("cuda")})()
    monkeypatch.setattr(module, "linear", lambda x, weight: x)
    assert torch.equal(linear_float32(x, on_a_gpu), x.float())


def is_rounded(logits: torch.Tensor) -> bool:
    return torch.equal(logits.float(), logits.bfloat16().float())


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}, {"lora_rank": 4, "lora_targets": ("q_proj", "lm_head")}])
def test_scorer_and_sampler_do_not_round_logits(make_policy, monkeypatch, settings):
    policy, seen = make_policy(dtype="bfloat16", **settings), []
    adapted = "lm_head" in settings.get("lora_targets", ())  # an adapted head rounds its logits
    model, sample_tokens = policy.engine.model, decoding.sample_tokens
    hidden = torch.randn(4, model.width, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.no_grad():
        logits = model.logits(hidden)
    assert logits.dtype == torch.float32 and is_rounded(logits) == adapted
    monkeypatch.setattr(decoding, "sample_tokens", lambda logits, *rest: seen.append(logits) or sample_tokens(logits, *rest))
    policy.sample([Request(np.arange(3, 12), seed=1)], Sampling(max_tokens=6))
    assert len(seen) > 1 and all(is_rounded(logits) == adapted for logits in seen)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_bfloat16_product_with_float32_output_on_a_gpu():
    assert has_float32_output(torch.device("cuda"), torch.bfloat16)
    x, weight = (torch.randn(n, 64, device="cuda").to(torch.bfloat16).requires_grad_() for n in (7, 500))
    logits = linear_float32(x, weight)
    torch.testing.assert_close(logits, x.float() @ weight.float().t(), rtol=1e-3, atol=1e-2)
    logits.sum().backward()
    assert x.grad is not None and weight.grad is not None
