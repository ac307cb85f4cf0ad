"""The sampler's norm by our kernel: what it computes, and where it is used."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from interpreted import assert_interpreted

from tacit.engines.local.fast import compiled
from tacit.engines.local.fast.layers import MOST_WIDE, has_norming_kernel

ON_TRIAL = """
import torch
from tacit.engines.local.fast.layers import _agrees, norm_rows
for width in (64, 576, 1536):
    assert _agrees(torch.device("cpu"), torch.float16, width), width
assert norm_rows(torch.zeros(0, 64), torch.ones(64), 1e-5).shape == (0, 64)
"""


def test_the_interpreted_kernel_computes_what_it_should() -> None:
    assert_interpreted(ON_TRIAL)


def test_a_cpu_has_no_such_kernel() -> None:
    assert not has_norming_kernel(torch.device("cpu"), torch.bfloat16, 576)


@pytest.mark.parametrize("there", [True, False])
def test_a_step_norms_by_kernel_where_there_is_one(monkeypatch, there) -> None:
    monkeypatch.setattr(compiled, "has_norming_kernel", lambda *of: there)
    monkeypatch.setattr(compiled, "norm_rows", lambda *given: "by kernel")
    monkeypatch.setattr(compiled.COMPILED, "normed", lambda *given: "compiled")
    norm = SimpleNamespace(weight=torch.ones(8), variance_epsilon=1e-5)
    assert compiled.CompiledWays.normed(torch.ones(3, 8), norm) == ("by kernel" if there else "compiled")
    assert compiled.CompiledWays.normed(torch.ones(1, 3, 8), norm) == "compiled", "a rectangle"


def test_rows_too_wide_for_a_program_have_none(monkeypatch) -> None:
    monkeypatch.setattr("tacit.engines.local.fast.layers.holds", lambda *of: True)
    has = has_norming_kernel.__wrapped__
    device = torch.device("cuda")
    assert has(device, torch.bfloat16, MOST_WIDE) and not has(device, torch.bfloat16, MOST_WIDE + 1)
    assert not has(device, torch.float32, 64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_has_it() -> None:
    pytest.importorskip("triton")
    assert all(has_norming_kernel(torch.device("cuda"), torch.bfloat16, width) for width in (576, 1536))
