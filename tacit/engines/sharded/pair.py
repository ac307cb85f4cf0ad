"""Two processes of which one gives the other tensors: NCCL between GPUs, gloo on CPUs.

A pair has a store of its own and belongs to no other group, so whoever of the two goes takes nobody else along.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=120)
"""how long one waits for the other, at the meeting and with every tensor"""
SENDER, RECEIVER = 0, 1


class TensorChannel:
    def __init__(self, store: Any, own: int, device: torch.device):
        """`own`: GIVES or TAKES. Both must come."""
        # A CUDA group wants tensors of its own GPU, a gloo group those of a CPU.
        make: Any = dist.ProcessGroupNCCL if device.type == "cuda" else dist.ProcessGroupGloo
        self._group, self._device = make(store, own, 2, TIMEOUT), device

    def send(self, tensor: torch.Tensor) -> None:
        self._wait(self._group.send([tensor.to(self._device)], RECEIVER, 0))

    def receive(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=self._device)
        self._wait(self._group.recv([tensor], SENDER, 0))
        return tensor

    def _wait(self, work: Any) -> None:
        work.wait()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
