"""Kernel probes: a kernel is used if it runs and matches torch; otherwise a warning says why not."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

from tacit.engines.local.fast.kernels import is_kernel_usable, on_tensor_device

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def triton(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def raising(error: Exception):
    def agrees() -> bool:
        raise error

    return agrees


def test_correct_kernel_is_used_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_kernel_usable("gates", GPU, lambda: True)
        assert not is_kernel_usable("gates", torch.device("cpu"), raising(AssertionError("probed"))), "they need a GPU"


def test_rejected_kernel_is_reported_in_a_warning():
    with pytest.warns(UserWarning, match="the Triton kernel for gates is not used on cuda.*results differ from torch"):
        assert not is_kernel_usable("gates", GPU, lambda: False)
    with pytest.warns(UserWarning, match="draws is not used on cuda.*: no compiler$"):
        assert not is_kernel_usable("draws", GPU, raising(RuntimeError("no compiler\nand much more")))
    with pytest.warns(UserWarning, match=": AssertionError$"):
        assert not is_kernel_usable("draws", GPU, raising(AssertionError()))


def test_out_of_memory_in_a_probe_is_raised():
    with pytest.raises(torch.OutOfMemoryError):
        is_kernel_usable("gates", GPU, raising(torch.OutOfMemoryError("no room")))


def test_on_tensor_device_passes_all_arguments():
    launch = on_tensor_device(lambda tensor, by, more=0: tensor * by + more)
    assert launch(torch.ones(2), 3, more=1).tolist() == [4, 4]
