"""`repeatable` fixes the order of sums on a GPU; a CPU is deterministic anyway."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from tacit.core.credit import Batch
from tacit.losses.surrogates import Imitation

SAYS = """
import os, torch
from tacit.engines.local.model import enable_determinism
enable_determinism(torch.device("{device}"))
print(torch.are_deterministic_algorithms_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("device", "printed"), [("cuda", "True :4096:8"), ("cpu", "False None")])
def test_enable_determinism_sets_torch_and_cublas_only_for_cuda(device, printed, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    done = subprocess.run([sys.executable, "-c", SAYS.format(device=device)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == printed


IN_BACKWARD = """
from types import SimpleNamespace
import torch
from tacit.engines.local.model import enable_determinism
from tacit.engines.local.fast.attention import _FlashVarlenAttention

modes = []
def backward(*arguments, scale):
    modes.append(torch.is_deterministic_algorithms_warn_only_enabled())
    return arguments[1:4]
torch.ops.aten._flash_attention_backward = backward
x = torch.zeros(2, 1, 4)
saved = SimpleNamespace(saved_tensors=(x,) * 7, seqlens=(0, 0, 1, 1), scale=1.0)
_FlashVarlenAttention.backward(saved, x)
assert not torch.are_deterministic_algorithms_enabled()
enable_determinism(torch.device("cuda"))
_FlashVarlenAttention.backward(saved, x)
print(modes, torch.is_deterministic_algorithms_warn_only_enabled())
"""


@pytest.mark.slow
def test_flash_attention_backward_runs_without_warn_only():
    """Torch's flash kernel fixes the order of sums only if `warn_only` is off; its source and its warning say so."""
    done = subprocess.run([sys.executable, "-c", IN_BACKWARD], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[False, False] True"


def learned(make_policy, device: str) -> str:
    """The digest after five steps on long shared prompts. A query's gradient is a sum over blocks of 128 keys. A sum of two
    has the same bits in either order, so prompts need more blocks."""
    policy = make_policy(device=device, repeatable=True, token_budget=4096, context=1024)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 200, 600) for _ in range(4)] * 4
    completions = [rng.integers(3, 200, 1 + i % 12) for i in range(len(prompts))]
    batch = Batch.imitation(prompts, completions)
    for _ in range(5):
        policy.update(batch, [Imitation()], 1e-3)
    return policy.digest()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_repeated_training_is_bit_identical(device, make_policy):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    assert learned(make_policy, device) == learned(make_policy, device)
