"""Starting what a sharded policy lives in: ranks, and servers where there are any."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from tacit.core.cpus import usable_cpus
from tacit.core.errors import TacitError
from tacit.engines.local.passes.models import resolve_device
from tacit.engines.local.sampling.stopping import end_tokens
from tacit.engines.models.sources import find_pretrained
from tacit.engines.sharded.driver.group import RankGroup
from tacit.engines.sharded.driver.handover import Handover
from tacit.engines.sharded.driver.launching import Launcher, ProcessLauncher, Role
from tacit.engines.sharded.driver.sampling import Replica
from tacit.engines.sharded.driver.server import Server
from tacit.engines.sharded.driver.servers import Servers, States
from tacit.engines.sharded.servers.orders import Opening
from tacit.engines.sharded.servers.serving import ENVIRONMENT
from tacit.engines.sharded.settings import ShardedSettings


def start_ranks(settings: ShardedSettings) -> RankGroup:
    """The processes, without a model yet."""
    device = resolve_device(settings)[0].type
    on_gpu = device == "cuda"
    if on_gpu and not settings.address and settings.ranks > (here := torch.cuda.device_count()):
        raise TacitError(
            f"engine setting ranks = {settings.ranks}, but this machine has {here} GPU(s), and each rank needs one of its "
            f"own; use --engine.ranks {here}, a Ray cluster (--engine.address), or --engine.device cpu."
        )
    role = Role("rank", "tacit.engines.sharded.ranks.serving", _threads(settings), on_gpu)
    return RankGroup(_launcher(role, settings), settings.ranks, device, settings.start_timeout_s, settings.timeout_s)


def start_servers(
    checkpoint: str,
    settings: ShardedSettings,
    ranks: RankGroup,
    replica: Replica,
    newest: Callable[[str], int],
    states: States,
) -> Servers:
    device, dtype = resolve_device(settings)
    on_gpu = device.type == "cuda"
    gpus: tuple[str, ...] = ()
    if on_gpu and not settings.address:
        there = torch.cuda.device_count()  # after the ranks' own, and beside them where there are no more
        places = [(settings.ranks + n) % there for n in range(settings.servers)]
        gpus = tuple(names_of_gpus(there)[place] for place in places)
    role = Role(
        "server",
        "tacit.engines.sharded.servers.serving",
        _threads(settings),
        on_gpu,
        settings.server_python,
        ENVIRONMENT | ({} if settings.address else {"VLLM_HOST_IP": "127.0.0.1"}),
        gpus,
    )
    found = find_pretrained(checkpoint)
    opening = Opening(
        checkpoint=str(place.absolute()) if (place := Path(found)).is_dir() else found,
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        context=replica.codec.context_limit,
        max_batch=settings.max_batch,
        end_tokens=tuple(sorted(end_tokens(replica.model.hf, replica.tokenizer))),
        lora_rank=settings.lora_rank,
        memory=settings.server_share(torch.cuda.device_count()),
    )
    launcher = _launcher(role, settings)
    servers = [
        Server(number, launcher, opening, settings.start_timeout_s, settings.timeout_s) for number in range(settings.servers)
    ]
    apart = on_gpu and (bool(settings.address) or settings.ranks + settings.servers <= torch.cuda.device_count())
    direct = settings.handover == "direct" or (settings.handover == "auto" and apart and not settings.lora_rank)
    return Servers(servers, replica, Handover(ranks, replica, settings.exchange, direct), newest, states)


def names_of_gpus(there: int) -> list[str]:
    """What the GPUs that this process sees are called outside of it: it may have been shown only some."""
    shown = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return shown[:there] if len(shown) >= there else [str(n) for n in range(there)]


def _launcher(role: Role, settings: ShardedSettings) -> Launcher:
    if not settings.address:
        return ProcessLauncher(role)
    from tacit.engines.sharded.driver.ray_launching import RayLauncher

    return RayLauncher(role, settings)


def _threads(settings: ShardedSettings) -> int:
    return settings.threads or max(1, usable_cpus() // (settings.ranks + settings.servers))
