"""Whether a checkpoint fits on the GPU, asked before anything of it is loaded: its files say how many weights they have.

to play     weights · bytes of the format
to train    + 4 (float32 masters, where the format is another) + 8 (moments) + 4 (gradients) + what a pass keeps
"""

from __future__ import annotations

import json
import math
import warnings
from functools import partial
from pathlib import Path

import torch

from tacit.core.errors import TacitError
from tacit.engines.local.memory import GIB, Budget, free_bytes, give_back
from tacit.engines.local.settings import EngineSettings

HEADER_BYTES = 8
"""a safetensors file begins with the length of its header"""


def weights_in(directory: Path) -> int | None:
    """How many numbers the checkpoint's safetensors files hold; None where there are none to ask."""
    files = sorted(directory.glob("*.safetensors"))
    try:
        return sum(_numbers(path) for path in files) if files else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # whoever loads it says what is wrong with it


def check_room(source: str, device: torch.device, dtype: torch.dtype, settings: EngineSettings) -> None:
    """Refuse a model whose weights alone do not fit; warn of one that could be played here, but not trained as a whole."""
    if device.type != "cuda" or not Path(source).is_dir() or (count := weights_in(Path(source))) is None:
        return
    size = dtype.itemsize
    name = f"model {source} has {count:,} weights: {count * size / GIB:.1f} GiB in {str(dtype).removeprefix('torch.')}"

    def enough(_: int) -> int:
        if (free := free_bytes(device)) < count * size:
            raise torch.OutOfMemoryError(
                f"{name}, and this GPU has {free / GIB:.1f} GiB free. Take a smaller model or a larger GPU, or let fewer runs "
                "share this one."
            )
        return free

    try:
        free = Budget(1, device).fit(enough, 1, partial(give_back, device), "loading the model")
    except torch.OutOfMemoryError as error:
        raise TacitError(str(error)) from None
    needed = count * (size + bytes_to_train(dtype))
    if not settings.lora_rank and needed > free:
        warnings.warn(
            f"{name}, and {needed / GIB:.1f} GiB to train all of them, where this GPU has {free / GIB:.1f} GiB free. It can be "
            "played; to train it set --engine.lora-rank, e.g. to 64.",
            stacklevel=2,
        )


def bytes_to_train(dtype: torch.dtype) -> int:
    """Beside each trained weight: its gradient and moments, and where it is no float32 a master and the gradient's sum."""
    return 4 + 8 if dtype == torch.float32 else dtype.itemsize + 4 + 8 + 4


def _numbers(path: Path) -> int:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(HEADER_BYTES), "little")
        header = json.loads(file.read(min(length, path.stat().st_size)))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
