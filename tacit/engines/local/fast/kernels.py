"""The switch for fast paths, and shared parts of the Triton kernels: capability probes, launch helpers, test data.

Every capability probe (`has_*_kernel`, `has_flash_attention`, `can_compile`) is decorated with `capability_probe`, which is
False inside `fast_paths(False)`; models and samplers created there always use plain torch. See contract.md.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from tacit.engines.local.memory import is_out_of_memory

HOPPER = 9  # `nvidia_generation` of a Hopper GPU
MIN_PDL_DRIVER = 12_040
"""first CUDA driver used with programmatic dependent launches inside CUDA graphs (supported since 12.3)"""
Rest = ParamSpec("Rest")
Result = TypeVar("Result")

disabled: set[str] = set()  # names of probes that return False, or `cuda_graphs`; set by benchmarks/ablation.py
_fast: ContextVar[bool] = ContextVar("fast", default=True)


def is_fast_enabled() -> bool:
    return _fast.get()


@contextmanager
def fast_paths(enabled: bool) -> Iterator[None]:
    """Within this context, fast paths are allowed or not (`--engine.fast`)."""
    token = _fast.set(enabled)
    try:
        yield
    finally:
        _fast.reset(token)


def capability_probe(probe: Callable[Rest, bool]) -> Callable[Rest, bool]:
    """Decorator: run the probe once per set of arguments, and answer False while fast paths are off."""
    cached = cache(probe)

    @wraps(probe)
    def check(*args: Rest.args, **kwargs: Rest.kwargs) -> bool:
        return _fast.get() and probe.__name__ not in disabled and cached(*args, **kwargs)  # type: ignore[arg-type]

    return check


def is_kernel_usable(what: str, device: torch.device, matches_torch: Callable[[], bool]) -> bool:
    """Whether a Triton kernel compiles on this device and `matches_torch()`, which runs it, is true. Warns if not: the torch
    fallback is slower. False without a GPU or without Triton."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    try:
        if matches_torch():
            return True
        reason = "its results differ from torch"
    except Exception as error:  # e.g. no C compiler, or one that is too old
        if is_out_of_memory(error):
            raise
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    warnings.warn(f"the Triton kernel for {what} is not used on {device}, falling back to slower torch: {reason}", stacklevel=2)
    return False


def on_tensor_device(launch: Callable[Concatenate[Tensor, Rest], Result]) -> Callable[Concatenate[Tensor, Rest], Result]:
    """Decorator: launch on the device of the first argument, instead of the thread's current device."""

    @wraps(launch)
    def launch_on_device(tensor: Tensor, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Result:
        with torch.cuda.device_of(tensor):
            return launch(tensor, *args, **kwargs)

    return launch_on_device


@cache
def pdl_options(device: torch.device) -> dict[str, bool]:
    """Options for programmatic dependent launch (PDL), where device and driver support it: a kernel's programs are scheduled
    while the previous kernel finishes, and wait for it inside the kernel. Used by all kernels of a decode step."""
    driver: Callable[[], int] = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)
    supported = nvidia_generation(device) >= HOPPER and driver() >= MIN_PDL_DRIVER
    if supported and importlib.util.find_spec("triton.language.extra.cuda.gdc") is not None:
        return {"USE_PDL": True, "launch_pdl": True}
    return {"USE_PDL": False}


def nvidia_generation(device: torch.device) -> int:
    """Major compute capability of an NVIDIA GPU; 0 for other devices."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return int(torch.cuda.get_device_capability(device)[0]) if nvidia else 0


def make_random(device: torch.device, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """make_random(…)(*shape): the next normal numbers of one generator, the same in every process."""
    generator = torch.Generator(device).manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator, device=device).to(dtype)
