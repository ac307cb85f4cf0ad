"""GPU memory: out of memory retries, adaptive batch sizes, GPUs that several processes share, and whether a model fits at all.

When an allocation fails, `free_memory` releases every cache that can be rebuilt. `AdaptiveBudget.run` then halves the budget
and retries; results do not depend on how a batch is split. Work that cannot be split waits while other processes hold the
memory. A budget grows again when more memory is available.
"""

from __future__ import annotations

import gc
import math
import re
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from tacit.core.errors import OutOfGPUMemory, TacitError
from tacit.core.files import read_json
from tacit.engines.local.settings import EngineSettings
from tacit.planning.plans import Cluster, Training
from tacit.planning.shapes import DEVICES, SAMPLERS, ModelShape, shape_of_config

CROWDED_SHARE = 0.25
"""caches are released between phases if less than this fraction of the GPU is free; work waits for other processes if they hold
more than this fraction"""
FRAGMENTED_RATIO = 1.5  # reserved / peak allocated memory above which torch's cache counts as fragmented
REGROWTH_RATIO = 1.25  # a budget grows once the available memory is this many times that of when it last shrank
WAITS_S = (2.0, 4.0, 8.0, 16.0, *19 * (30.0,))
"""seconds between attempts while other processes hold the memory: ten minutes in total"""
GIB = 2**30

Result = TypeVar("Result")

_OUT_OF_MEMORY = re.compile(
    r"cuda.*out of memory|CU\w+_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED.*cublasCreate", re.I | re.S
)


def empty_cache(device: torch.device) -> None:
    """Return torch's unused cached memory to the GPU, so other processes can use it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


cache_owners: weakref.WeakSet[Any] = weakref.WeakSet()
"""objects with caches on their `device`; `free_memory` calls their `release()`, which frees what is not in use"""


def free_memory(device: torch.device) -> None:
    """Release all rebuildable caches, and tensors kept alive by the traceback of a failed attempt."""
    for owner in list(cache_owners):
        if owner.device.type == device.type:
            owner.release()
    gc.collect()
    empty_cache(device)


def is_nearly_full(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return free < CROWDED_SHARE * total


def is_fragmented(device: torch.device) -> bool:
    """Whether torch reserves far more memory than its peak use, for example because every pass has new shapes."""
    if device.type != "cuda":
        return False
    return torch.cuda.memory_reserved(device) > FRAGMENTED_RATIO * torch.cuda.max_memory_allocated(device)


def free_bytes(device: torch.device) -> int:
    """Bytes torch can still allocate: free memory and its own unused blocks, except in private pools of CUDA graphs."""
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    graph_pools = [
        segment
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == index and tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    ]
    return int(free + unused - sum(s["total_size"] - s["allocated_size"] for s in graph_pools))


def available_and_total(device: torch.device) -> tuple[int, int]:
    """(bytes this process holds or could allocate, bytes of the whole GPU); (0, 0) on a CPU."""
    if device.type != "cuda":
        return 0, 0
    free, total = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device)), int(total)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this error, or one of its causes, is a failed GPU allocation in torch or a library (cuBLAS, a kernel loader).
    False if the device is unusable afterwards, whatever the message."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, torch.OutOfMemoryError) or (isinstance(cause, RuntimeError) and _OUT_OF_MEMORY.search(str(cause))):
            # After an illegal memory access, for example, every CUDA call fails.
            try:
                if torch.cuda.is_initialized():
                    torch.cuda.synchronize()
            except RuntimeError:
                return False
            return True
        cause = cause.__cause__ or cause.__context__
    return False


class MemoryWait:
    """Waits with growing pauses for memory that other processes hold, ten minutes at most."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._waits = device, list(WAITS_S)

    @property
    def can_help(self) -> bool:
        available, total = available_and_total(self._device)
        return bool(self._waits) and total - available > CROWDED_SHARE * total

    def wait(self, reason: str = "") -> None:
        """Sleep once. The first call warns with the reason and the memory that others hold."""
        if reason and len(self._waits) == len(WAITS_S):
            available, total = available_and_total(self._device)
            others = f"other processes hold {(total - available) / GIB:.1f} of this GPU's {total / GIB:.1f} GiB"
            warnings.warn(f"{reason}: {others}; waiting for them up to {sum(WAITS_S):.0f} s", stacklevel=4)
        time.sleep(self._waits.pop(0))


class AdaptiveBudget:
    """The amount of work of one pass: `limit`, or less after an out of memory error, until memory is available again."""

    def __init__(self, limit: int, device: torch.device) -> None:
        self.limit = self.current = limit
        self._device = device
        self._available = 0  # bytes available when `current` was last set; 0 before the first time

    def set_current(self, current: int) -> None:
        self.current, self._available = current, available_and_total(self._device)[0]

    @property
    def can_grow(self) -> bool:
        """Whether `current` was never set, or clearly more memory is available than when it was lowered."""
        return (self.current < self.limit or not self._available) and (
            available_and_total(self._device)[0] > REGROWTH_RATIO * self._available
        )

    def run(
        self,
        work: Callable[[int], Result],
        minimum: int,
        what: str,
        maximum: int | None = None,
        clean_up: Callable[[], None] = lambda: None,
    ) -> Result:
        """`work(budget)`, retried with half the budget after each out of memory error, down to `minimum`. At `minimum` it waits
        for other processes if they hold the memory, else raises OutOfMemoryError. `what` describes the work in warnings, with
        {} for the budget. `maximum` caps the budget. `clean_up()` runs after each failed attempt."""
        budget = min(self.limit, 2 * self.current) if self.current < self.limit and self.can_grow else self.current
        budget = budget if maximum is None else min(budget, maximum)
        memory_wait = MemoryWait(self._device)
        while True:
            try:
                result = work(budget)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                smaller = max(minimum, budget // 2)
                self.set_current(min(self.current, smaller))
                if budget <= minimum and not memory_wait.can_help:
                    raise torch.OutOfMemoryError(str(error)) from error
            else:
                self.current = max(self.current, budget)
                return result
            # Outside the handler: until it is left, the error keeps every tensor of the attempt alive.
            clean_up()
            free_memory(self._device)
            reason = f"out of GPU memory in {what.format(budget)}"
            if budget > minimum:
                warnings.warn(f"{reason}; retrying with {smaller}, which is slower", stacklevel=3)
                budget = smaller
            else:
                memory_wait.wait(reason)


def retry_on_oom(work: Callable[[], Result], device: torch.device, what: str) -> Result:
    """`work()`, which cannot be split. Out of memory: free caches and retry; wait while other processes hold the memory."""
    try:
        return work()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    free_memory(device)
    try:
        return AdaptiveBudget(1, device).run(lambda _: work(), 1, what)
    except torch.OutOfMemoryError as error:
        raise OutOfGPUMemory(
            f"out of GPU memory in {what}; use a smaller model, train LoRA adapters (--engine.lora-rank), or run fewer "
            "processes on this GPU."
        ) from error


# Whether a model fits on the GPU, estimated with the formulas of `tacit plan` before loading it.

SUGGESTED_RANK = 64
MIN_USEFUL_TOKENS = 512  # minimum tokens per micro-batch for which training is worthwhile


def read_shape(source: str) -> ModelShape | None:
    """The model's shape; None for a hub id or an unsupported architecture, which are not checked."""
    try:
        return shape_of_config(read_json(Path(source) / "config.json"), source)
    except (TacitError, OSError, ValueError, TypeError, AttributeError):
        return None


def check_memory(source: str, device: torch.device, dtype: torch.dtype, settings: EngineSettings) -> None:
    """Raise if the model is too large to sample from; warn, with settings that would fit, if it cannot be trained."""
    if device.type != "cuda" or (shape := read_shape(source)) is None:
        return
    size, count = dtype.itemsize, shape.weights
    name = f"model {source} has {count:,} weights: {_gib(size * count)} in {str(dtype).removeprefix('torch.')}"
    copies = 0
    if settings.fast != "off":  # copies of qkv and of gate and up, fused into one matrix each
        heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        copies = size * shape.layers * shape.width * (heads + 2 * shape.inner)
        name += f", and {_gib(copies)} of fused copies"

    def check_free(_: int) -> int:
        if (free := free_bytes(device)) < size * count + copies:
            raise torch.OutOfMemoryError(
                f"{name}; this GPU has {_gib(free)} free. Use a smaller model, a larger GPU or several GPUs "
                "(docs/guides/sharded.md), or run fewer processes on this one."
            )
        return free

    try:
        free = AdaptiveBudget(1, device).run(check_free, 1, "loading the model")
    except torch.OutOfMemoryError as error:
        raise OutOfGPUMemory(str(error)) from None
    gpu = replace(DEVICES["h200"], memory=free, overhead=0, number_bytes=size)

    def bytes_needed(training: Training) -> tuple[float, float]:
        """(fixed bytes, bytes per token of a micro-batch). Gradient checkpointing uses no fused projections."""
        one = Cluster(shape, gpu, SAMPLERS["local"], training=training)
        state = sum(one.rank_state(1).values()) + one.logit_bytes(math.inf)
        return state + (0 if training.recompute else copies), one.activation_bytes

    def fits(training: Training) -> bool:
        state, per_token = bytes_needed(training)
        return free - state >= MIN_USEFUL_TOKENS * per_token

    def describe(training: Training) -> str:
        state, per_token = bytes_needed(training)
        return f"{_gib(state)}, and {_gib(1000 * per_token)} for every 1,000 tokens of a micro-batch"

    training, rank = Training(settings.lora_rank, settings.gradient_checkpointing), settings.lora_rank or SUGGESTED_RANK
    if fits(training):
        return
    remedy = "use a larger GPU, or several (docs/guides/sharded.md)."
    for alternative in (replace(training, recompute=True), replace(training, lora_rank=rank), Training(rank, recompute=True)):
        if fits(alternative):
            flags = [f"--engine.lora-rank {rank}"] * (rank != training.lora_rank and bool(alternative.lora_rank))
            flags += ["--engine.gradient-checkpointing"] * alternative.recompute
            remedy = f"set {' '.join(flags)}, which takes {describe(alternative)}."
            break
    what = f"adapters of rank {training.lora_rank}" if training.lora_rank else "all weights"
    warnings.warn(
        f"{name}. Training {what} takes {describe(training)}; this GPU has {_gib(free)} free. It can be sampled; to train it, "
        + remedy,
        stacklevel=2,
    )


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"
