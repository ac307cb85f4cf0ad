"""SwiGLU kernels: values, gradients, and when they are used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from interpreted import assert_interpreted
from test_packed_decoder import build, grouped_rows

from tacit.engines.local.fast import layers
from tacit.engines.local.fast.layers import EAGER_OPS, LayerOps, has_swiglu_kernels
from tacit.engines.local.fast.packed import VarlenDecoder
from tacit.engines.local.packing import PackedBatch, make_packed_batch

INTERPRETED = """
import torch
from torch.nn.functional import silu
from tacit.engines.local.fast import layers
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    assert layers.swiglu_matches_torch(torch.device("cpu"), dtype), dtype
layers.SWIGLU_BLOCK = 16
wide = torch.randn(3, 90, generator=torch.Generator().manual_seed(0), requires_grad=True)
for inner in (1, 16, 37):  # of a wider matrix, as the features of a projection with more beside them
    both = wide[:, 5 : 5 + 2 * inner]
    pull = torch.randn(3, inner)
    gate, up = both.chunk(2, -1)
    found, expected = layers.SwiGLU.apply(both), silu(gate) * up
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, wide, pull), torch.autograd.grad(expected, wide, pull))
assert layers.SwiGLU.apply(torch.zeros(0, 8)).shape == (0, 4)
"""


def test_interpreted_kernels_match_torch() -> None:
    assert_interpreted(INTERPRETED)


def make_llama():
    hf = build("Llama", num_hidden_layers=5)
    torch.manual_seed(1)
    for name, parameter in hf.named_parameters():  # biases and norms start trivial: make them matter
        if name.endswith("bias") or "norm" in name:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return hf


def computed(decoder: VarlenDecoder, hf, pack: PackedBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Hidden states and gradients of one pass."""
    hidden_TD = decoder(pack)
    weights_TD = torch.randn(hidden_TD.shape, generator=torch.Generator().manual_seed(2)).to(hidden_TD.dtype)
    (hidden_TD * weights_TD).sum().backward()
    gradients = {n: p.grad for n, p in hf.named_parameters() if p.grad is not None}
    hf.zero_grad()
    return hidden_TD.detach(), gradients


@pytest.mark.parametrize("there", [True, False])
def test_compiled_passes_use_the_kernels_if_available(monkeypatch, there) -> None:
    """Small passes are not compiled and use no kernels."""
    hf, used = make_llama(), []

    class Counted:
        @staticmethod
        def apply(gate_up):
            used.append(len(gate_up))
            return EAGER_OPS.swiglu(gate_up)

    decoder, pack = VarlenDecoder(hf), make_packed_batch(*grouped_rows(), np.arange(7))
    expected, expected_gradients = computed(decoder, hf, pack)
    monkeypatch.setattr(layers, "has_swiglu_kernels", lambda device, dtype: there)
    monkeypatch.setattr(layers, "SwiGLU", Counted)
    computed(decoder, hf, pack)
    assert not used
    compiled = LayerOps(compiled=True)
    monkeypatch.setattr(layers.CompiledOp, "failed", True)  # this test does not compile anything
    monkeypatch.setattr(VarlenDecoder, "choose_ops", lambda self, pack: compiled)
    found, gradients = computed(decoder, hf, pack)
    assert used == ([pack.num_tokens] * 4 + [len(pack.source_T)] if there else [])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients, expected_gradients)


def test_no_kernels_on_a_cpu() -> None:
    assert not has_swiglu_kernels(torch.device("cpu"), torch.bfloat16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernels_on_a_gpu() -> None:
    pytest.importorskip("triton")
    assert has_swiglu_kernels(torch.device("cuda"), torch.bfloat16)
