"""The LoRA decode step matches the model with its adapters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from interpreted import assert_interpreted
from peft import LoraConfig, get_peft_model
from torch.nn.functional import rms_norm, silu

from tacit.core.protocols import Request, Sampling
from tacit.engines.local.fast import lora_step, projections
from tacit.engines.local.fast.lora_step import has_lora_norm_kernel, has_lora_swiglu_kernel
from tests.engines.random_models import as_on_a_gpu, make_model, make_prompts, make_requests, plain_logprobs

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

INTERPRETED = """
import torch
from tacit.engines.local.fast import lora_step
cpu = torch.device("cpu")
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for size, rank in ((32, 8), (96, 16), (300, 24), (1536, 64)):
        assert lora_step._check_norm_kernel(cpu, dtype, size, rank), (dtype, size, rank)
        if dtype != torch.bfloat16:  # the interpreter has no bfloat16 products
            assert lora_step._check_swiglu_kernel(cpu, dtype, size, rank), (dtype, size, rank)
"""


# 2048 + 0.75 + 0.5 rounds to 2050 in float16. Added one by one, both terms would be lost.
ROUNDED_ONCE = """
import torch
from types import SimpleNamespace
from tacit.engines.local.fast.lora_step import add_lora_and_norm
h, lora_B = torch.full((1, 32), 2048.0).half(), torch.zeros(8, 32).half()
product = torch.cat((torch.full((1, 32), 0.75), torch.zeros(1, 8)), 1).half()
product[0, 35], lora_B[3] = 2.0, 0.25
norm = SimpleNamespace(weight=torch.full((32,), 3.0).half(), variance_epsilon=0.0)
assert add_lora_and_norm(h, norm, product, lora_B.t()).eq(3).all() and h.eq(2050).all(), h
"""


@pytest.mark.parametrize("program", [INTERPRETED, ROUNDED_ONCE])
def test_interpreted_kernels_match_torch(program):
    assert_interpreted(program)


def _sum(product: torch.Tensor, lora_B: torch.Tensor) -> torch.Tensor:
    """y + a Bᵀ; checks the memory layout that the kernels expect."""
    assert product.is_contiguous() and product.shape[1] % 8 == 0 and lora_B.t().is_contiguous()
    y, a = product.split(lora_B.shape, -1)
    return y + a @ lora_B.t()


def _added(h: torch.Tensor, norm: Any, product: torch.Tensor, lora_B: torch.Tensor) -> torch.Tensor:
    assert h.is_contiguous()
    h += _sum(product, lora_B)
    return rms_norm(h, h.shape[-1:], norm.weight, norm.variance_epsilon)


def _gated_update(product: torch.Tensor, lora_B: torch.Tensor) -> torch.Tensor:
    gate, up = _sum(product, lora_B).chunk(2, -1)
    return silu(gate) * up


@pytest.fixture
def kernels(monkeypatch):
    """Stacked adapters, as on a GPU, with the kernels replaced by torch. Returns the rows of each launch."""
    launched: list[int] = []
    monkeypatch.setattr(projections, "wants_column_major", lambda weights: False)
    monkeypatch.setattr(projections, "is_launch_bound", lambda device: True)
    for name in ("has_lora_norm_kernel", "has_lora_swiglu_kernel"):
        monkeypatch.setattr(lora_step, name, lambda *known: True)
    for name, plain in (("add_lora_and_norm", _added), ("lora_swiglu", _gated_update)):

        def launch(first, *rest, plain=plain):
            launched.append(len(first))
            return plain(first, *rest)

        monkeypatch.setattr(lora_step, name, launch)
    return launched


def _make_adapted(family: str, targets: list[str] = TARGETS, rank: int = 3):
    peft = get_peft_model(make_model(family), LoraConfig(r=rank, lora_alpha=16, target_modules=targets), adapter_name="one")
    peft.add_adapter("two", LoraConfig(r=8, lora_alpha=16, target_modules=targets))
    torch.manual_seed(1)
    for name, parameter in peft.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.2 * torch.randn_like(parameter)
    return peft.eval()


def _check(peft, sampler, requests: list[Request] | None = None) -> list[float]:
    requests = requests or make_requests(make_prompts(5))
    completions = sampler.sample(requests, Sampling(max_tokens=8))
    for request, completion in zip(requests, completions, strict=True):
        expected = plain_logprobs(peft, request.prompt, completion.tokens)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
    assert sampler.llama_decoder is not None
    return completions[0].logprobs.tolist()


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("family", ["llama", "llama-untied-bias", "qwen2", "qwen3"])
@pytest.mark.parametrize("limit", [0, 32 * 32 + 1, 1 << 24])
def test_lora_step_logprobs_match_the_model(family, limit, tokenizer, kernels, monkeypatch):
    """With all, some or none of the single matrices too large to be stacked with A."""
    monkeypatch.setattr(projections, "STACK_LORA_LIMIT", limit)
    peft = _make_adapted(family)
    _check(peft, as_on_a_gpu(peft.get_base_model(), tokenizer, monkeypatch))
    assert kernels


def test_adapters_can_be_updated_switched_and_disabled(tokenizer, kernels, monkeypatch):
    """Graphs are replayed until something moves, then captured again."""
    peft = _make_adapted("qwen2")
    sampler = as_on_a_gpu(peft.get_base_model(), tokenizer, monkeypatch)
    seen, moves = [_check(peft, sampler)], sampler.llama_decoder.graph_epoch
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_A.one" in name:
                parameter *= 1.5
    seen.append(_check(peft, sampler))
    assert sampler.llama_decoder.graph_epoch == moves
    peft.set_adapter("two")
    seen.append(_check(peft, sampler))
    peft.base_model.set_adapter(["one", "two"])
    _check(peft, sampler)
    peft.set_adapter("two")
    launched = len(kernels)
    with peft.disable_adapter():
        seen.append(_check(peft, sampler))
    assert len(kernels) == launched  # the kernels are not used
    seen.append(_check(peft, sampler))
    assert seen[4] == seen[2] and len({tuple(logprobs) for logprobs in seen}) == 4


@pytest.mark.parametrize(
    ("targets", "known"),
    [
        (["q_proj", "v_proj"], False),
        (["k_proj", "o_proj", "down_proj"], False),
        (["up_proj"], False),
        (["o_proj", "up_proj", "down_proj"], True),
    ],
)
def test_reference_step_is_used_if_a_matrix_has_no_adapter(targets, known, tokenizer, kernels, monkeypatch):
    peft = _make_adapted("qwen2", targets)
    _check(peft, as_on_a_gpu(peft.get_base_model(), tokenizer, monkeypatch))
    assert bool(kernels) == known


def test_lm_head_may_have_an_adapter(tokenizer, kernels, monkeypatch):
    peft = _make_adapted("llama-untied-bias", [*TARGETS, "lm_head"])
    _check(peft, as_on_a_gpu(peft.get_base_model(), tokenizer, monkeypatch))
    assert kernels


def test_no_kernels_on_a_cpu():
    assert not has_lora_norm_kernel(torch.device("cpu"), torch.bfloat16, 64, 16)
    assert not has_lora_swiglu_kernel(torch.device("cpu"), torch.bfloat16, 64, 16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernels_on_a_gpu():
    pytest.importorskip("triton")
    gpu = torch.device("cuda")
    assert has_lora_norm_kernel(gpu, torch.bfloat16, 1536, 16) and has_lora_swiglu_kernel(gpu, torch.bfloat16, 8960, 32)
    assert not has_lora_norm_kernel(gpu, torch.float32, 1536, 16) and not has_lora_swiglu_kernel(gpu, torch.float32, 8960, 32)
