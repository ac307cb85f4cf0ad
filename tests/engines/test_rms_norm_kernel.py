"""The RMSNorm kernel of the sampler: values, and when it is used."""

from __future__ import annotations

import pytest
import torch
from interpreted import assert_interpreted

from tacit.engines.local.fast.layers import MAX_NORM_WIDTH, has_rms_norm_kernel

ON_TRIAL = """
import torch
from tacit.engines.local.fast.layers import _rms_norm_matches_torch, rms_norm_forward
for width in (64, 576, 1536):
    assert _rms_norm_matches_torch(torch.device("cpu"), torch.float16, width), width
assert rms_norm_forward(torch.zeros(0, 64), torch.ones(64), 1e-5).shape == (0, 64)
"""


def test_interpreted_kernel_matches_torch() -> None:
    assert_interpreted(ON_TRIAL)


def test_no_kernel_on_a_cpu() -> None:
    assert not has_rms_norm_kernel(torch.device("cpu"), torch.bfloat16, 576)


def test_no_kernel_for_rows_wider_than_the_limit(monkeypatch) -> None:
    monkeypatch.setattr("tacit.engines.local.fast.layers.is_kernel_usable", lambda *of: True)
    has = has_rms_norm_kernel.__wrapped__
    device = torch.device("cuda")
    assert has(device, torch.bfloat16, MAX_NORM_WIDTH) and not has(device, torch.bfloat16, MAX_NORM_WIDTH + 1)
    assert not has(device, torch.float32, 64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernel_on_a_gpu() -> None:
    pytest.importorskip("triton")
    assert all(has_rms_norm_kernel(torch.device("cuda"), torch.bfloat16, width) for width in (576, 1536))
