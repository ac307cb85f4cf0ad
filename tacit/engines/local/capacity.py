"""Whether a checkpoint fits on the GPU, estimated from its file headers before loading.

P weights of b bytes, J of them in fused projections (qkv, gate and up), K in single ones that the sampler copies for LoRA,
A trainable weights:

to sample   b·(P + J + K)                              the sampler holds copies of the fused projections
to train    b·(P + J) + A·bytes_to_train + logits      a forward pass holds them until its backward pass
            + tokens · L·(4·D + 5·H·d + 4·F)·b         per micro-batch: L layers of width D, H heads of d, an MLP of F
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tacit.core.errors import OutOfGPUMemory
from tacit.engines.local.fast.projections import FAMILY, STACK_LORA_LIMIT
from tacit.engines.local.memory import GIB, AdaptiveBudget, free_bytes
from tacit.engines.local.model import LOGIT_ELEMENTS
from tacit.engines.local.settings import EngineSettings
from tacit.engines.local.update import LOGIT_COPIES

HEADER_BYTES = 8
"""a safetensors file starts with the length of its header"""
FUSED_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
SUGGESTED_RANK = 64
LOGIT_BYTES = 4 * LOGIT_COPIES * LOGIT_ELEMENTS["cuda"]
"""of one chunk of tokens"""
MIN_USEFUL_TOKENS = 512
"""per micro-batch; training with fewer is not worthwhile"""


@dataclass(frozen=True)
class CheckpointInfo:
    """Tensor shapes and configuration of a checkpoint."""

    shapes: Mapping[str, tuple[int, ...]]
    """of every tensor"""
    config: Mapping[str, Any]

    @property
    def weights(self) -> int:
        return sum(map(math.prod, self.shapes.values()))

    @property
    def fused_weights(self) -> int:
        """Weights that the fast paths copy into fused projections."""
        return sum(self._sizes_of(FUSED_PROJECTIONS))

    def lora_copied_weights(self, targets: tuple[str, ...]) -> int:
        """Weights of single projections that the sampler copies to append LoRA's A."""
        return sum(size for size in self._sizes_of(set(targets) - set(FUSED_PROJECTIONS)) if size < STACK_LORA_LIMIT)

    def _sizes_of(self, modules: Collection[str]) -> list[int]:
        if self.config.get("model_type") not in FAMILY:
            return []
        return [math.prod(shape) for name, shape in self.shapes.items() if _module(name) in modules]

    def lora_weights(self, rank: int, targets: tuple[str, ...]) -> int:
        """r · (in + out) of every matrix with an adapter."""
        matrices = (shape for name, shape in self.shapes.items() if _module(name) in targets and len(shape) == 2)
        return sum(rank * sum(shape) for shape in matrices)

    def token_bytes(self, size: int, recomputed: bool) -> int:
        """Activation bytes per token saved for the backward pass; 0 if the configuration lacks the sizes. With gradient
        checkpointing, one layer's activations and every layer's input."""
        try:
            layers, width, heads, inner = (
                int(self.config[name])
                for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
            )
            features = heads * int(self.config.get("head_dim") or width // heads)
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return 0
        layer = (4 * width + 5 * features + 4 * inner) * size
        return layers * width * size + layer if recomputed else layers * layer


def read_checkpoint(directory: Path) -> CheckpointInfo | None:
    """None if there are no readable safetensors files; loading the model reports what is wrong."""
    # Some repositories hold a second copy of all weights under other names.
    files = sorted(directory.glob("model*.safetensors")) or sorted(directory.glob("*.safetensors"))
    try:
        shapes = {name: shape for path in files for name, shape in _shapes(path).items()}
        config = json.loads((directory / "config.json").read_text())
        return CheckpointInfo(shapes, config) if shapes and isinstance(config, dict) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def check_memory(source: str, device: torch.device, dtype: torch.dtype, settings: EngineSettings) -> None:
    """Raise if the model is too large to sample from; warn if it cannot be trained with these settings, and name settings that
    would fit."""
    if device.type != "cuda" or not Path(source).is_dir() or (found := read_checkpoint(Path(source))) is None:
        return
    size, count = dtype.itemsize, found.weights
    name = f"model {source} has {count:,} weights: {_gib(size * count)} in {str(dtype).removeprefix('torch.')}"
    copied = 0
    if settings.fast != "off":
        copied = found.fused_weights + (found.lora_copied_weights(settings.lora_targets) if settings.lora_rank else 0)
    if copied:
        name += f", and {_gib(size * copied)} of fused copies"

    def check_free(_: int) -> int:
        if (free := free_bytes(device)) < size * (count + copied):
            raise torch.OutOfMemoryError(
                f"{name}; this GPU has {_gib(free)} free. Use a smaller model, a larger GPU or several GPUs "
                "(docs/guides/sharded.md), or run fewer processes on this one."
            )
        return free

    try:
        free = AdaptiveBudget(1, device).run(check_free, 1, "loading the model")
    except torch.OutOfMemoryError as error:
        raise OutOfGPUMemory(str(error)) from None
    plan = _TrainingPlan(found, dtype, settings)
    if plan.tokens(free) >= MIN_USEFUL_TOKENS:
        return
    rank = settings.lora_rank or SUGGESTED_RANK
    alternatives = (
        replace(settings, gradient_checkpointing=True),
        replace(settings, lora_rank=rank),
        replace(settings, lora_rank=rank, gradient_checkpointing=True),
    )
    plans = (_TrainingPlan(found, dtype, other) for other in alternatives)
    fitting = next((other for other in plans if other.tokens(free) >= MIN_USEFUL_TOKENS), None)
    what = f"adapters of rank {settings.lora_rank}" if settings.lora_rank else "all of them"
    remedy = (
        f"set {fitting.flags(settings)}, which takes {fitting.describe()}."
        if fitting
        else "use a larger GPU, or several (docs/guides/sharded.md)."
    )
    warnings.warn(
        f"{name}. To train {what} takes {plan.describe()}; this GPU has {_gib(free)} free. It can be sampled; to train it "
        + remedy,
        stacklevel=2,
    )


@dataclass(frozen=True)
class _TrainingPlan:
    """Memory needed to train a model with given settings."""

    model: CheckpointInfo
    dtype: torch.dtype
    settings: EngineSettings

    @property
    def state(self) -> int:
        """Bytes independent of the micro-batch. With gradient checkpointing there are no fused projections."""
        model, size, rank = self.model, self.dtype.itemsize, self.settings.lora_rank
        fused = self.settings.fast != "off" and not self.settings.gradient_checkpointing
        trained = model.lora_weights(rank, self.settings.lora_targets) if rank else model.weights
        held = model.weights + (trained if rank else 0) + (model.fused_weights if fused else 0)
        return size * held + trained * bytes_to_train(self.dtype) + LOGIT_BYTES

    @property
    def per_token(self) -> int:
        return self.model.token_bytes(self.dtype.itemsize, self.settings.gradient_checkpointing)

    def tokens(self, free: int) -> float:
        """Tokens that fit into one micro-batch."""
        left = free - self.state
        return left / self.per_token if self.per_token else math.inf if left > 0 else 0.0

    def describe(self) -> str:
        return f"{_gib(self.state)}, and {_gib(1000 * self.per_token)} for every 1,000 tokens of a micro-batch"

    def flags(self, instead_of: EngineSettings) -> str:
        rank, recomputes = self.settings.lora_rank, self.settings.gradient_checkpointing
        said = [f"--engine.lora-rank {rank}"] if rank != instead_of.lora_rank else []
        return " ".join([*said, *(["--engine.gradient-checkpointing"] if recomputes else [])])


def bytes_to_train(dtype: torch.dtype) -> int:
    """Bytes per trained weight: its gradient and AdamW moments; for bfloat16 also the master and its gradient."""
    return 4 + 8 if dtype == torch.float32 else dtype.itemsize + 4 + 8 + 4


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(HEADER_BYTES), "little")
        header = json.loads(file.read(min(length, path.stat().st_size)))
    return {name: tuple(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"}


def _module(name: str) -> str:
    """`q_proj` of `model.layers.0.self_attn.q_proj.weight`."""
    return name.split(".")[-2] if "." in name else ""


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"
