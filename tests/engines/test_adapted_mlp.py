"""A feed-forward with adapters as one step: the formula, its gradient, and where it is used."""

from __future__ import annotations

import peft
import pytest
import torch
from interpreted import assert_interpreted
from test_lean import build
from test_regions import computed, model_of, packs

from tacit.engines.local.passes import adapted_mlp, ragged
from tacit.engines.local.passes.adapted_mlp import fed_forward
from tacit.engines.local.passes.joint import joint
from tacit.engines.local.passes.pieces import PLAIN, gated

INTERPRETED = """
import torch
from types import SimpleNamespace
from torch import nn
from torch.nn.functional import silu
from tacit.engines.local.passes import adapted_mlp
from tacit.engines.local.passes.adapted_mlp import Launch
for rank in adapted_mlp.RANKS:
    assert adapted_mlp._agrees(torch.device("cpu"), torch.float16, rank), rank
adapted_mlp.let.__wrapped__.__defaults__ = adapted_mlp.pulled.__wrapped__.__defaults__ = (Launch(16, 16, 4, 1),)
generator = torch.Generator().manual_seed(0)
def made(*shape, learns=True):
    return torch.randn(shape, generator=generator).requires_grad_(learns)
for rows, inner in ((1, 16), (37, 72)):
    x, gate, up, down = made(rows, 24), *(made(*shape, learns=False) for shape in ((inner, 24), (inner, 24), (24, inner)))
    loras = [(made(16, 24), made(inner, 16), 0.5), (made(16, 24), made(inner, 16), 0.25), (made(16, inner), made(24, 16), 2.0)]
    parts = [(weight, None, [lora]) for weight, lora in zip((gate, up, down), loras)]
    adapted_mlp.plain_parts, adapted_mlp._has_kernels = lambda modules: parts, lambda *_: True
    def plain(x, part):
        weight, _, [(A, B, scale)] = part
        return x @ weight.t() + scale * (x @ A.t() @ B.t())
    expected = plain(silu(plain(x, parts[0])) * plain(x, parts[1]), parts[2])
    found = adapted_mlp.fed_forward(x, SimpleNamespace(gate_proj=None, up_proj=None, down_proj=None))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    read, pull = [x, *(t for A, B, _ in loras for t in (A, B))], torch.randn(rows, 24, generator=generator)
    for ours, theirs in zip(torch.autograd.grad(found, read, pull), torch.autograd.grad(expected, read, pull), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))
    # in the first layer the input itself may have no gradient
    again = adapted_mlp.fed_forward(x.detach(), SimpleNamespace(gate_proj=None, up_proj=None, down_proj=None))
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(again, read[1:], pull))
"""


def test_the_interpreted_kernels_compute_what_they_should() -> None:
    assert_interpreted(INTERPRETED)


def adapted(rank: int = 16, **options):
    hf = build("Llama")
    layers = options.pop("layers", ["gate_proj", "up_proj", "down_proj"])
    config = peft.LoraConfig(r=rank, target_modules=layers, init_lora_weights=False, **options)
    peft.get_peft_model(hf, config)
    return hf.model.layers[0].mlp


@pytest.mark.parametrize(
    "case, taken",
    [
        ({}, True),
        ({"rank": 32}, True),
        ({"rank": 5}, False),
        ({"layers": ["gate_proj", "up_proj"]}, False),
        ({"rank_pattern": {"down_proj": 32}}, False),
        ({"lora_dropout": 0.1}, False),
    ],
)
def test_it_is_for_three_adapters_of_a_rank_that_the_kernels_know(monkeypatch, case, taken) -> None:
    mlp, x = adapted(**case), torch.randn(3, 32)
    assert fed_forward(x, mlp) is None, "a CPU has no such kernels"
    monkeypatch.setattr(adapted_mlp, "_has_kernels", lambda device, dtype, rank: True)
    monkeypatch.setattr(adapted_mlp, "let", lambda both, A: (gated(both), gated(both) @ A.t()))
    y = fed_forward(x, mlp)
    assert (y is not None) == taken
    if y is not None:
        torch.testing.assert_close(y, joint(gated(joint(x, mlp.gate_proj, mlp.up_proj)), mlp.down_proj))


def test_weights_that_are_trained_and_those_with_a_bias_go_another_way(monkeypatch) -> None:
    monkeypatch.setattr(adapted_mlp, "_has_kernels", lambda device, dtype, rank: True)
    mlp = adapted()
    mlp.down_proj.base_layer.weight.requires_grad_()
    assert fed_forward(torch.randn(3, 32), mlp) is None
    mlp = adapted()
    mlp.up_proj.base_layer.bias = torch.nn.Parameter(torch.zeros(len(mlp.up_proj.base_layer.weight)), requires_grad=False)
    assert fed_forward(torch.randn(3, 32), mlp) is None


def test_passes_that_are_compiled_use_it_and_small_ones_do_not(monkeypatch) -> None:
    hf, pack, asked = model_of("Llama"), packs()[0], []
    monkeypatch.setattr(ragged, "fed_forward", lambda x, mlp: asked.append(len(x)))
    decoder = ragged.RaggedDecoder(hf)
    expected, _ = computed(decoder, hf, pack)
    assert not asked
    monkeypatch.setattr(ragged, "COMPILED", PLAIN)  # a compiler is not what is tried here
    found, _ = computed(decoder, hf, pack)
    assert asked == [pack.computed] * 4 + [len(pack.predicts_T)]
    torch.testing.assert_close(found, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_that_can_compile_has_them() -> None:
    pytest.importorskip("triton")
    assert all(adapted_mlp._has_kernels(torch.device("cuda"), torch.bfloat16, rank) for rank in adapted_mlp.RANKS)
