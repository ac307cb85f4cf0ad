"""The decode kernel computes attention over each row's own columns. Without a GPU triton's interpreter runs it."""

from __future__ import annotations

import pytest
import torch
from interpreted import assert_interpreted

from tacit.engines.local.passes.step_attention import has_step_kernel

INTERPRETED = """
import torch
from tacit.engines.local.passes import step_attention
for heads in ((3, 3, 64), (2, 6, 128), (1, 16, 16), (2, 1, 32)):
    assert step_attention._agrees(torch.device("cpu"), torch.float32, *heads), heads
"""


def test_the_interpreted_kernel_is_plain_attention():
    assert_interpreted(INTERPRETED)


def test_a_cpu_has_none():
    assert not has_step_kernel(torch.device("cpu"), torch.bfloat16, 3, 3, 64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_that_can_compile_has_it():
    pytest.importorskip("triton")
    assert has_step_kernel(torch.device("cuda"), torch.bfloat16, 3, 3, 64)
    assert not has_step_kernel(torch.device("cuda"), torch.float32, 3, 3, 64)
