"""The decode attention kernel reads each slot's own positions. Without a GPU, Triton's interpreter runs it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from interpreted import assert_interpreted

from tacit.engines.local.fast import attention
from tacit.engines.local.fast.attention import has_decode_kernel

INTERPRETED = """
import torch
from tacit.engines.local.fast import attention
for heads in ((3, 3, 64), (2, 6, 128), (1, 16, 16), (2, 1, 32)):
    assert attention.check_decode_kernel(torch.device("cpu"), torch.float32, *heads), heads
assert attention.check_decode_kernel(torch.device("cpu"), torch.float16, 2, 6, 64)
"""

# Three steps of three rows, each at its own position. Both paths read zeros where no step has written.
IN_A_MODEL = """
import torch
from tacit.engines.local.fast import kv_cache
from tacit.engines.local.fast import attention
from tacit.engines.local.fast.llama import LlamaForward
from tests.engines.random_models import make_model
forward, seen = LlamaForward(make_model("qwen3")), {}
forward.cpu_step_allowed = False
attention.count_sms = lambda device: 16
for kernel in (False, True):
    kv_cache.has_decode_kernel = lambda *known: kernel
    cache = kv_cache.KeyValueCache(forward.shape, head_major=not kernel)
    cache.resize(3, 32)
    assert cache.uses_decode_kernel == kernel
    tokens, positions = torch.tensor([1, 2, 3]), torch.tensor([0, 5, 9])
    with torch.no_grad():
        seen[kernel] = [forward.decode_step(tokens + step, positions + step, cache, 32) for step in range(3)]
torch.testing.assert_close(seen[True], seen[False], atol=1e-4, rtol=1e-4)
"""


@pytest.mark.parametrize("program", [INTERPRETED, IN_A_MODEL])
def test_interpreted_kernel_matches_torch(program):
    assert_interpreted(program)


def test_positions_are_split_only_if_sms_would_idle(monkeypatch):
    """The fastest measured numbers of splits on a device with 132 SMs."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    device = torch.device("cuda", 77)  # a device that no other test uses, because the result is cached
    splits = {programs: attention.choose_splits(programs, device) for programs in (2, 32, 48, 128, 192, 512)}
    assert splits == {2: 8, 32: 4, 48: 4, 128: 1, 192: 1, 512: 1}


def test_no_kernel_on_a_cpu():
    assert not has_decode_kernel(torch.device("cpu"), torch.bfloat16, 3, 3, 64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernel_on_a_gpu():
    pytest.importorskip("triton")
    assert has_decode_kernel(torch.device("cuda"), torch.bfloat16, 3, 3, 64)
    assert not has_decode_kernel(torch.device("cuda"), torch.float32, 3, 3, 64)
