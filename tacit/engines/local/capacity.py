"""Whether a checkpoint fits on the GPU, asked before anything of it is loaded: its files say which weights they have.

P weights of b bytes in use, J of them in projections that read the same and are joined, K in others that the sampler copies to
have an adapter beside them, A that are trained (all, or adapters'):

to play     b·(P + J + K)                              the sampler has the joined ones as matrices of their own
to train    b·(P + J) + A·bytes_to_train + logits      and so has a pass, until it has gone back
            + tokens · L·(4·D + 5·H·d + 4·F)·b         of a pass: L layers of width D, H heads of d, a feed-forward of F
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tacit.core.errors import NoRoom
from tacit.engines.local.llama import FAMILY
from tacit.engines.local.memory import GIB, AdaptiveBudget, free_bytes
from tacit.engines.local.model import LOGIT_ELEMENTS
from tacit.engines.local.projections import STACK_LORA_LIMIT
from tacit.engines.local.settings import EngineSettings
from tacit.engines.local.update import LOGIT_COPIES

HEADER_BYTES = 8
"""a safetensors file begins with the length of its header"""
FUSED_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
SUGGESTED_RANK = 64
LOGIT_BYTES = 4 * LOGIT_COPIES * LOGIT_ELEMENTS["cuda"]
"""of one chunk"""
MIN_USEFUL_TOKENS = 512
"""of a pass: with fewer than these nobody would want to train"""


@dataclass(frozen=True)
class CheckpointInfo:
    """What the files of a model say of it."""

    shapes: Mapping[str, tuple[int, ...]]
    """of every tensor"""
    config: Mapping[str, Any]

    @property
    def weights(self) -> int:
        return sum(map(math.prod, self.shapes.values()))

    @property
    def joined(self) -> int:
        """Weights that are copied into larger matrices, by the passes of the family of models that has them."""
        if self.config.get("model_type") not in FAMILY:
            return 0
        return sum(math.prod(shape) for name, shape in self.shapes.items() if _module(name) in FUSED_PROJECTIONS)

    def beside(self, targets: tuple[str, ...]) -> int:
        """Weights that the same passes copy, so that an adapter stands beside them."""
        if self.config.get("model_type") not in FAMILY:
            return 0
        single = (
            math.prod(shape) for name, shape in self.shapes.items() if _module(name) in set(targets) - set(FUSED_PROJECTIONS)
        )
        return sum(size for size in single if size < STACK_LORA_LIMIT)

    def adapters(self, rank: int, targets: tuple[str, ...]) -> int:
        """r · (in + out) of every matrix that gets one."""
        matrices = (shape for name, shape in self.shapes.items() if _module(name) in targets and len(shape) == 2)
        return sum(rank * sum(shape) for shape in matrices)

    def token_bytes(self, size: int, recomputed: bool) -> int:
        """Kept of one token for the pass back; 0 where the configuration does not say. What is recomputed is kept of one layer
        at a time, and of the others what they begin with."""
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
    """None where there are no safetensors files to ask; whoever loads it says what is wrong with it."""
    # Some have a second copy of all weights beside them, under other names.
    files = sorted(directory.glob("model*.safetensors")) or sorted(directory.glob("*.safetensors"))
    try:
        shapes = {name: shape for path in files for name, shape in _shapes(path).items()}
        config = json.loads((directory / "config.json").read_text())
        return CheckpointInfo(shapes, config) if shapes and isinstance(config, dict) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def check_memory(source: str, device: torch.device, dtype: torch.dtype, settings: EngineSettings) -> None:
    """Refuse a model that cannot even be played here; warn of one that can be, but not trained as it is set, and say what would
    do."""
    if device.type != "cuda" or not Path(source).is_dir() or (found := read_checkpoint(Path(source))) is None:
        return
    size, count = dtype.itemsize, found.weights
    name = f"model {source} has {count:,} weights: {_gib(size * count)} in {str(dtype).removeprefix('torch.')}"
    copied = found.joined + (found.beside(settings.lora_targets) if settings.lora_rank else 0)
    if copied:
        name += f", and {_gib(size * copied)} of copies to compute with"

    def enough(_: int) -> int:
        if (free := free_bytes(device)) < size * (count + copied):
            raise torch.OutOfMemoryError(
                f"{name}; this GPU has {_gib(free)} free. Use a smaller model, a larger GPU or several GPUs "
                "(docs/guides/sharded.md), or let fewer runs share this one."
            )
        return free

    try:
        free = AdaptiveBudget(1, device).run(enough, 1, "loading the model")
    except torch.OutOfMemoryError as error:
        raise NoRoom(str(error)) from None
    asked = _TrainingPlan(found, dtype, settings)
    others = (
        replace(settings, gradient_checkpointing=True),
        replace(settings, lora_rank=settings.lora_rank or SUGGESTED_RANK),
        replace(settings, lora_rank=settings.lora_rank or SUGGESTED_RANK, gradient_checkpointing=True),
    )
    if asked.tokens(free) < MIN_USEFUL_TOKENS:
        what = f"adapters of rank {settings.lora_rank}" if settings.lora_rank else "all of them"
        would = next(
            (way for way in (_TrainingPlan(found, dtype, other) for other in others) if way.tokens(free) >= MIN_USEFUL_TOKENS),
            None,
        )
        warnings.warn(
            f"{name}. To train {what} takes {asked.told()}; this GPU has {_gib(free)} free. It can be played; to train it "
            + (
                f"set {would.flags(settings)}, which takes {would.told()}."
                if would
                else "take a larger GPU, or several (docs/guides/sharded.md)."
            ),
            stacklevel=2,
        )


@dataclass(frozen=True)
class _TrainingPlan:
    """One way to train a model."""

    model: CheckpointInfo
    dtype: torch.dtype
    settings: EngineSettings

    @property
    def state(self) -> int:
        """Bytes whatever a pass has in it. With recomputation the pass is the model's own, which joins nothing."""
        model, size, rank = self.model, self.dtype.itemsize, self.settings.lora_rank
        trained = model.adapters(rank, self.settings.lora_targets) if rank else model.weights
        held = model.weights + (trained if rank else 0) + (0 if self.settings.gradient_checkpointing else model.joined)
        return size * held + trained * bytes_to_train(self.dtype) + LOGIT_BYTES

    @property
    def a_token(self) -> int:
        return self.model.token_bytes(self.dtype.itemsize, self.settings.gradient_checkpointing)

    def tokens(self, free: int) -> float:
        """That a pass can have in it."""
        beside = free - self.state
        return beside / self.a_token if self.a_token else math.inf if beside > 0 else 0.0

    def told(self) -> str:
        return f"{_gib(self.state)}, and {_gib(1000 * self.a_token)} for every 1,000 tokens of a pass"

    def flags(self, instead_of: EngineSettings) -> str:
        rank, recomputes = self.settings.lora_rank, self.settings.gradient_checkpointing
        said = [f"--engine.lora-rank {rank}"] if rank != instead_of.lora_rank else []
        return " ".join([*said, *(["--engine.gradient-checkpointing"] if recomputes else [])])


def bytes_to_train(dtype: torch.dtype) -> int:
    """Beside each trained weight: its gradient and moments, and where it is no float32 a master and the gradient's sum."""
    return 4 + 8 if dtype == torch.float32 else dtype.itemsize + 4 + 8 + 4


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(HEADER_BYTES), "little")
        header = json.loads(file.read(min(length, path.stat().st_size)))
    return {name: tuple(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"}


def _module(name: str) -> str:
    """`model.layers.0.self_attn.q_proj.weight` is of `q_proj`."""
    return name.split(".")[-2] if "." in name else ""


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"
