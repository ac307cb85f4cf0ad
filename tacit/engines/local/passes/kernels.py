"""Kernels of our own: used where they run and are right, which is asked by running them once beside torch's own operations."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch

from tacit.engines.local.memory import ran_out


def trial_logits(rows: int, vocabulary: int, block: int, generator: torch.Generator) -> torch.Tensor:
    """[rows, vocabulary] from flat to sharp, for a kernel that reads them in blocks. Of every three rows one cannot have what
    comes first, and one not what comes after a block."""
    spread_B = torch.logspace(-1, 1, rows, device=generator.device)[:, None]
    logits_BV = torch.randn(rows, vocabulary, generator=generator, device=generator.device) * spread_B
    logits_BV[::3, : block + 5] = float("-inf")
    logits_BV[1::3, block - 5 :] = float("-inf")
    return logits_BV


def holds(device: torch.device, agrees: Callable[[], bool]) -> bool:
    """Whether a kernel of triton's can be used on this device; `agrees` runs it, and says whether what it computes is right."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    try:
        return agrees()
    except Exception as error:
        if ran_out(error):
            raise
        return False  # a compiler that is missing, or too old: torch's operations do it then
