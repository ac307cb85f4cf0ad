"""Kernels of our own: used where they run and are right, which is asked by running them once beside torch's own operations."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch

from tacit.engines.local.memory import is_out_of_memory

HOPPER = 9
"""a `generation` of GPUs"""
MIN_PDL_DRIVER = 12_040
"""the first driver of which we know that such a launch can be part of a CUDA graph (it can since 12.3)"""
Rest = ParamSpec("Rest")
Answer = TypeVar("Answer")


def on_tensor_device(
    launch: Callable[Concatenate[torch.Tensor, Rest], Answer],
) -> Callable[Concatenate[torch.Tensor, Rest], Answer]:
    """triton launches on the device that is current in a thread, wherever the tensors are."""

    @wraps(launch)
    def there(tensor: torch.Tensor, /, *rest: Rest.args, **more: Rest.kwargs) -> Answer:
        with torch.cuda.device_of(tensor):
            return launch(tensor, *rest, **more)

    return there


@cache
def early_launch_options(device: torch.device) -> dict[str, bool]:
    """Options of a step's launches (what they share with prefills and updates has them there too): where device and driver
    can, a kernel is put in place while the one before it is on its last programs, and waits there."""
    driver: Callable[[], int] = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)
    can = nvidia_generation(device) >= HOPPER and driver() >= MIN_PDL_DRIVER
    if can and importlib.util.find_spec("triton.language.extra.cuda.gdc") is not None:
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


def nvidia_generation(device: torch.device) -> int:
    """Of Nvidia's GPUs, the major compute capability; 0 of all others, whose makers count otherwise."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return int(torch.cuda.get_device_capability(device)[0]) if nvidia else 0


def probe_logits(rows: int, vocabulary: int, block: int, generator: torch.Generator) -> torch.Tensor:
    """[rows, vocabulary] from flat to sharp, for a kernel that reads them in blocks. Of every three rows one cannot have what
    comes first, and one not what comes after a block."""
    spread_B = torch.logspace(-1, 1, rows, device=generator.device)[:, None]
    logits_BV = torch.randn(rows, vocabulary, generator=generator, device=generator.device) * spread_B
    logits_BV[::3, : block + 5] = float("-inf")
    logits_BV[1::3, block - 5 :] = float("-inf")
    return logits_BV


def is_kernel_usable(what: str, device: torch.device, agrees: Callable[[], bool]) -> bool:
    """Whether a kernel of triton's can be used on this device; `agrees` runs it, and says whether what it computes is right.
    Where there should be one and torch's operations do it instead, that is said: it is slower."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    try:
        if agrees():
            return True
        why = "it gives other numbers than torch's operations"
    except Exception as error:  # a compiler that is missing, or too old
        if is_out_of_memory(error):
            raise
        why = next(iter(str(error).splitlines()), "") or type(error).__name__
    warnings.warn(f"our kernel for {what} is not used on {device}, torch's slower operations are: {why}", stacklevel=2)
    return False
