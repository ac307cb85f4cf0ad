"""Whether a model fits the GPUs of the ranks, asked before anything of it is loaded; the plan says what would."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tacit.core.errors import TacitError
from tacit.engines.local.room import FEW_TOKENS
from tacit.engines.models.sources import find_pretrained
from tacit.engines.sharded.settings import ShardedSettings
from tacit.planning.memory import Training
from tacit.planning.remedies import refuse_unless_it_fits
from tacit.planning.shapes import shape_of_config


def check_room(checkpoint: str, settings: ShardedSettings, device: torch.device, dtype: torch.dtype) -> None:
    config = Path(find_pretrained(checkpoint)) / "config.json"
    if device.type != "cuda" or not config.is_file():
        return
    told = json.loads(config.read_text())
    try:
        shape_of_config(told, checkpoint)
    except TacitError:
        return  # an architecture that plans know nothing of may fit all the same
    gpus = torch.cuda.device_count()
    servers = settings.servers_beside_a_rank(gpus) * settings.server_share(gpus) if settings.servers else 0.0
    refuse_unless_it_fits(
        told,
        checkpoint,
        settings.ranks,
        (1.0 - servers) * torch.cuda.get_device_properties(device).total_memory,
        Training(settings.lora_rank, settings.gradient_checkpointing, settings.gather),
        FEW_TOKENS,
        dtype.itemsize,
        samples=not settings.servers,
    )
