"""Estimate whether a model fits on the GPU, with the formulas of `tacit plan`, before loading it."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from tacit.core.errors import OutOfGPUMemory, TacitError
from tacit.core.files import read_json
from tacit.engines.local.memory import GIB, AdaptiveBudget, free_bytes
from tacit.engines.local.settings import EngineSettings
from tacit.planning.plans import Training, activation_bytes, logit_bytes, rank_state
from tacit.planning.shapes import DEVICES, ModelShape, shape_of_config

SUGGESTED_RANK = 64
MIN_USEFUL_TOKENS = 512
"""minimum tokens per micro-batch for which training is worthwhile"""


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
        state = sum(rank_state(shape, gpu, 1, training).values()) + logit_bytes(shape, gpu, math.inf)
        return state + (0 if training.recompute else copies), activation_bytes(shape, gpu, training.recompute)

    def fits(training: Training) -> bool:
        state, per_token = bytes_needed(training)
        return free - state >= MIN_USEFUL_TOKENS * per_token

    def describe(training: Training) -> str:
        state, per_token = bytes_needed(training)
        return f"{_gib(state)}, and {_gib(1000 * per_token)} for every 1,000 tokens of a micro-batch"

    own, rank = Training(settings.lora_rank, settings.gradient_checkpointing), settings.lora_rank or SUGGESTED_RANK
    if fits(own):
        return
    remedy = "use a larger GPU, or several (docs/guides/sharded.md)."
    for other in (replace(own, recompute=True), replace(own, lora_rank=rank), Training(rank, recompute=True)):
        if fits(other):
            flags = [f"--engine.lora-rank {rank}"] * (rank != own.lora_rank and bool(other.lora_rank))
            flags += ["--engine.gradient-checkpointing"] * other.recompute
            remedy = f"set {' '.join(flags)}, which takes {describe(other)}."
            break
    what = f"adapters of rank {own.lora_rank}" if own.lora_rank else "all weights"
    warnings.warn(
        f"{name}. Training {what} takes {describe(own)}; this GPU has {_gib(free)} free. It can be sampled; to train it, "
        + remedy,
        stacklevel=2,
    )


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"
