"""The decode kernel computes attention over each row's own columns. Without a GPU triton's interpreter runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tacit.engines.local.passes.step_attention import has_step_kernel

ROOT = Path(__file__).resolve().parents[2]

INTERPRETED = """
import torch
from tacit.engines.local.passes import step_attention
for heads in ((3, 3, 64), (2, 6, 128), (1, 16, 16), (2, 1, 32)):
    assert step_attention._agrees(torch.device("cpu"), torch.float32, *heads), heads
print("agrees")
"""


def test_the_interpreted_kernel_is_plain_attention():
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == "agrees", done.stderr


def test_a_cpu_has_none():
    assert not has_step_kernel(torch.device("cpu"), torch.bfloat16, 3, 3, 64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_that_can_compile_has_it():
    pytest.importorskip("triton")
    assert has_step_kernel(torch.device("cuda"), torch.bfloat16, 3, 3, 64)
    assert not has_step_kernel(torch.device("cuda"), torch.float32, 3, 3, 64)
