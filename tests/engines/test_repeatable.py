"""`repeatable` fixes the order in which a GPU adds up; a CPU's is fixed anyway."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from tacit.core.batch import Batch
from tacit.losses.imitation import Imitation

SAYS = """
import os, torch
from tacit.engines.local.passes.models import keep_order
keep_order(torch.device("{device}"))
print(torch.are_deterministic_algorithms_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
"""


@pytest.mark.parametrize(("device", "said"), [("cuda", "True :4096:8"), ("cpu", "False None")])
def test_what_is_set(device, said, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    done = subprocess.run([sys.executable, "-c", SAYS.format(device=device)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said


def learned(make_policy, device: str) -> str:
    """The digest after five steps on many rows that share prompts."""
    policy = make_policy(device=device, repeatable=True, token_budget=4096)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 200, 40) for _ in range(16)] * 8
    completions = [rng.integers(3, 200, 1 + i % 12) for i in range(len(prompts))]
    batch = Batch.imitation(prompts, completions)
    for _ in range(5):
        policy.update(batch, [Imitation()], 1e-3)
    return policy.digest()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_again_has_the_same_bits(device, make_policy):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    assert learned(make_policy, device) == learned(make_policy, device)
