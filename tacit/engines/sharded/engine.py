"""What every view of a sharded policy shares: the ranks, who samples for them, and how often each member's weights moved."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.core.errors import TacitError
from tacit.core.platform import usable_cpus
from tacit.core.types import HiddenState
from tacit.engines.local.adapters import MAIN
from tacit.engines.local.model import resolve_device
from tacit.engines.local.settings import EngineSettings
from tacit.engines.local.slots import find_end_tokens
from tacit.engines.models.bases import find_pretrained
from tacit.engines.sharded.group import RankGroup
from tacit.engines.sharded.launch import Launcher, ProcessLauncher, RayLauncher, Role
from tacit.engines.sharded.messages import ServerConfig
from tacit.engines.sharded.server import Replica, Samplers, Server, WeightTransfer
from tacit.engines.sharded.server_process import ENVIRONMENT
from tacit.engines.sharded.servers import HiddenStates, ServerPool
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
    role = Role("rank", "tacit.engines.sharded.rank_process", _threads(settings), on_gpu)
    return RankGroup(_launcher(role, settings), settings.ranks, device, settings.start_timeout_s, settings.timeout_s)


def start_servers(
    checkpoint: str,
    settings: ShardedSettings,
    ranks: RankGroup,
    replica: Replica,
    newest: Callable[[str], int],
    states: HiddenStates,
) -> ServerPool:
    device, dtype = resolve_device(settings)
    on_gpu = device.type == "cuda"
    gpus: tuple[str, ...] = ()
    if on_gpu and not settings.address:
        there = torch.cuda.device_count()  # after the ranks' own, and beside them where there are no more
        places = [(settings.ranks + n) % there for n in range(settings.servers)]
        gpus = tuple(gpu_names(there)[place] for place in places)
    module, environment = "tacit.engines.sharded.server_process", {} if settings.address else {"VLLM_HOST_IP": "127.0.0.1"}
    role = Role("server", module, _threads(settings), on_gpu, settings.server_python, ENVIRONMENT | environment, gpus)
    found = find_pretrained(checkpoint)
    opening = ServerConfig(
        checkpoint=str(place.absolute()) if (place := Path(found)).is_dir() else found,
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        context=replica.codec.context_limit,
        max_batch=settings.max_batch,
        end_tokens=tuple(sorted(find_end_tokens(replica.model.hf, replica.tokenizer))),
        lora_rank=settings.lora_rank,
        memory=settings.server_share(torch.cuda.device_count()),
    )
    launcher, limits = _launcher(role, settings), (settings.start_timeout_s, settings.timeout_s)
    servers = [Server(number, launcher, opening, *limits) for number in range(settings.servers)]
    apart = on_gpu and (bool(settings.address) or settings.ranks + settings.servers <= torch.cuda.device_count())
    direct = settings.handover == "direct" or (settings.handover == "auto" and apart and not settings.lora_rank)
    return ServerPool(servers, replica, WeightTransfer(ranks, replica, settings.exchange, direct), newest, states)


def gpu_names(there: int) -> list[str]:
    """What the GPUs that this process sees are called outside of it: it may have been shown only some."""
    shown = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return shown[:there] if len(shown) >= there else [str(n) for n in range(there)]


def _launcher(role: Role, settings: ShardedSettings) -> Launcher:
    return RayLauncher(role, settings) if settings.address else ProcessLauncher(role)


def _threads(settings: ShardedSettings) -> int:
    return settings.threads or max(1, usable_cpus() // (settings.ranks + settings.servers))


class ShardedEngine:
    """The ranks, the samplers, and how often each member's weights have moved. Shared by every view of the policy."""

    def __init__(self, hf: Any, tokenizer: Any, checkpoint: str, settings: ShardedSettings, seed: int, ranks: RankGroup):
        self.ranks, self.settings = ranks, settings
        self.versions = {MAIN: 0}
        self.poolings: tuple[str, ...] = ranks.ask("open", checkpoint, settings, seed)[0]["poolings"]
        alone = EngineSettings(**{f.name: getattr(settings, f.name) for f in fields(EngineSettings)})
        plays = replace(alone, value_head=False, gradient_checkpointing=False)
        newest = self.versions.__getitem__
        self.replica = Replica(
            hf, tokenizer, plays, seed, newest, lambda name: ranks.ask("weights", name)[0], plays=not settings.servers
        )
        self.device = resolve_device(settings)[0].type
        """of the ranks and the servers"""
        self.servers: ServerPool | None = None
        if settings.servers:
            self.servers = start_servers(checkpoint, settings, ranks, self.replica, newest, self._states)
        self.samplers: Samplers = self.servers or self.replica
        self.references: set[str] = set()
        """members that a frozen copy was made of"""
        self._digests: dict[tuple[str | None, bool], tuple[dict[str, int], str]] = {}

    def member(self, name: str) -> None:
        if name not in self.versions:
            self.replica.member(name)  # refuses what cannot be
            self.ranks.ask("member", name)
            self.versions[name] = 0

    def digest(self, name: str | None = None, masters: bool = True) -> str:
        known = self._digests.get((name, masters))
        if known is None or known[0] != self.versions:
            known = dict(self.versions), self.ranks.ask("digest", name, masters)[0]
            self._digests[name, masters] = known
        return known[1]

    def ask_rows(self, what: str, *arguments: Any) -> dict[int, Any]:
        """The answers of all ranks, each of which has those of some rows."""
        return dict(chain.from_iterable(self.ranks.ask(what, *arguments)))

    def hidden_scan(
        self, name: str, prompts: Sequence[np.ndarray], layers: Sequence[int], poolings: Sequence[str]
    ) -> dict[tuple[int, str], np.ndarray]:
        states = {(i, p): np.zeros((len(prompts), self.replica.model.width), np.float32) for i in layers for p in poolings}
        for rows, found in chain.from_iterable(self.ranks.ask("hidden_scan", name, prompts, list(layers), list(poolings))):
            for which, states_RD in found.items():
                states[which][rows] = states_RD
        return states

    def _states(self, name: str, prompts: Sequence[np.ndarray], which: HiddenState) -> np.ndarray:
        return self.hidden_scan(name, prompts, [which.layer], [which.pooling])[which]


class ShardedScorer:
    """Scores text under one member, or under its reference."""

    def __init__(self, engine: ShardedEngine, name: str, reference: bool = False):
        self._engine, self._who = engine, (name, reference)

    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        found = self._engine.ask_rows("logprobs", self._who, prompts, completions, temperature)
        return [found.get(i, np.zeros(0, np.float32)) for i in range(len(prompts))]

    def distributions(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], top_k: int | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        vocabulary = self._engine.replica.model.vocabulary
        if top_k is not None and not 1 <= top_k <= vocabulary:
            raise TacitError(f"top_k = {top_k} must be between 1 and the vocabulary of {vocabulary}.")
        width = top_k or vocabulary
        nothing = (np.zeros((0, width), np.int64), np.zeros((0, width), np.float32))
        found = self._engine.ask_rows("distributions", self._who, prompts, completions, top_k)
        return [found.get(i, nothing) for i in range(len(prompts))]
