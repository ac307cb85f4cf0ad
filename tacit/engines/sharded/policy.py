"""`ShardedPolicy`: implements the protocols with ranks that hold the model in shards, and servers that sample."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.core.credit import Batch
from tacit.core.errors import NonFiniteLoss, TacitError
from tacit.core.files import read_json
from tacit.core.platform import usable_cpus
from tacit.core.protocols import LossTerm, ModelSource, Request, Sampling, Scheduler, Scorer
from tacit.core.types import Completion, HiddenState
from tacit.engines.local.checkpoint import FORMAT, MANIFEST, cannot_write, export, read_manifest
from tacit.engines.local.engine import MAIN, PolicyBase
from tacit.engines.local.memory import MIN_USEFUL_TOKENS, read_shape
from tacit.engines.local.model import load_pretrained, resolve_device, set_threads
from tacit.engines.local.policy import NO_REFERENCE
from tacit.engines.local.settings import EngineSettings
from tacit.engines.local.slots import find_end_tokens
from tacit.engines.models.bases import find_checkpoint, find_pretrained
from tacit.engines.sharded.launch import Launcher, ProcessLauncher, RankGroup, RayLauncher, Role
from tacit.engines.sharded.messages import ServerConfig
from tacit.engines.sharded.server_process import ENVIRONMENT
from tacit.engines.sharded.servers import Replica, Server, ServerPool, WeightTransfer
from tacit.engines.sharded.settings import ShardedSettings
from tacit.engines.sharded.shards import LAYOUT, PICKLED
from tacit.planning.plans import Training, check_memory_fits

SHARDS = "shards"


def check_room(checkpoint: str, settings: ShardedSettings, device: torch.device, dtype: torch.dtype) -> None:
    """Raise, before loading, if the model does not fit the GPUs of the ranks; the error suggests settings that would fit."""
    source = find_pretrained(checkpoint)
    if device.type != "cuda" or read_shape(source) is None:
        return
    gpus = torch.cuda.device_count()
    servers = settings.servers_beside_a_rank(gpus) * settings.server_share(gpus) if settings.servers else 0.0
    check_memory_fits(
        read_json(Path(source) / "config.json"),
        checkpoint,
        settings.ranks,
        (1.0 - servers) * torch.cuda.get_device_properties(device).total_memory,
        Training(settings.lora_rank, settings.gradient_checkpointing, settings.gather),
        MIN_USEFUL_TOKENS,
        dtype.itemsize,
        samples=not settings.servers,
    )


def load_policy(model: ModelSource, settings: ShardedSettings, ranks: RankGroup | None = None) -> ShardedPolicy:
    """A policy from `model.name`, as in the local engine. With `ranks`, these processes are reused for the new model."""
    checkpoint = find_checkpoint(model.name, model.seed, model.texts, model.sizes)
    device, dtype = resolve_device(settings)
    set_threads(settings.threads)
    if not settings.address:  # the ranks use this machine's GPUs
        check_room(checkpoint, settings, device, dtype)
    if settings.servers:
        device = torch.device("cpu")  # the driver's copy is only saved, not sampled from
    hf, tokenizer = load_pretrained(checkpoint, device, dtype)  # first, so that load errors come before ranks start
    group = ranks or start_ranks(settings)
    try:
        return ShardedPolicy(ShardedEngine(hf, tokenizer, checkpoint, settings, model.seed, group))
    except BaseException:
        if ranks is None:
            group.close()
        raise


def start_ranks(settings: ShardedSettings) -> RankGroup:
    """Start the rank processes, without a model."""
    device = resolve_device(settings)[0].type
    on_gpu = device == "cuda"
    if on_gpu and not settings.address and settings.ranks > (gpus := torch.cuda.device_count()):
        raise TacitError(
            f"engine setting ranks = {settings.ranks}, but this machine has {gpus} GPU(s), and each rank needs one; use "
            f"--engine.ranks {gpus}, a Ray cluster (--engine.address), or --engine.device cpu."
        )
    role = Role("rank", "tacit.engines.sharded.rank", _threads(settings), on_gpu)
    return RankGroup(_launcher(role, settings), settings.ranks, device, settings.start_timeout_s, settings.timeout_s)


def gpu_names(count: int) -> list[str]:
    """Names of this process's `count` GPUs for CUDA_VISIBLE_DEVICES of another process."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[:count] if len(visible) >= count else [str(n) for n in range(count)]


def _launcher(role: Role, settings: ShardedSettings) -> Launcher:
    return RayLauncher(role, settings) if settings.address else ProcessLauncher(role)


def _threads(settings: ShardedSettings) -> int:
    return settings.threads or max(1, usable_cpus() // (settings.ranks + settings.servers))


class ShardedEngine:
    """Shared by all views of a policy: the ranks, the sampler (servers or the driver's copy), and the members' versions."""

    def __init__(self, hf: Any, tokenizer: Any, checkpoint: str, settings: ShardedSettings, seed: int, ranks: RankGroup):
        self.ranks, self.settings = ranks, settings
        self.versions = {MAIN: 0}
        self.poolings: tuple[str, ...] = ranks.call("open", checkpoint, settings, seed)[0]
        local = EngineSettings(**{f.name: getattr(settings, f.name) for f in fields(EngineSettings)})
        local = replace(local, value_head=False, gradient_checkpointing=False)
        newest, fetch = self.versions.__getitem__, lambda name: ranks.call("weights", name)[0]
        self.replica = Replica(hf, tokenizer, local, seed, newest, fetch, samples=not settings.servers)
        self.device = resolve_device(settings)[0].type  # device of the ranks and servers
        self.servers = self._start_servers(checkpoint) if settings.servers else None
        self.samplers: ServerPool | Replica = self.servers or self.replica
        self.references: set[str] = set()  # members with a frozen copy
        self._digests: dict[tuple[str | None, bool], tuple[dict[str, int], str]] = {}

    def _start_servers(self, checkpoint: str) -> ServerPool:
        settings, replica, (device, dtype) = self.settings, self.replica, resolve_device(self.settings)
        on_gpu = device.type == "cuda"
        gpus: tuple[str, ...] = ()
        if on_gpu and not settings.address:
            count = torch.cuda.device_count()  # servers take the GPUs after the ranks', then share the ranks'
            gpus = tuple(gpu_names(count)[(settings.ranks + n) % count] for n in range(settings.servers))
        module, environment = "tacit.engines.sharded.server_process", {} if settings.address else {"VLLM_HOST_IP": "127.0.0.1"}
        role = Role("server", module, _threads(settings), on_gpu, settings.server_python, ENVIRONMENT | environment, gpus)
        source = find_pretrained(checkpoint)
        config = ServerConfig(
            checkpoint=str(path.absolute()) if (path := Path(source)).is_dir() else source,
            device=device.type,
            dtype=str(dtype).removeprefix("torch."),
            context=replica.codec.context_limit,
            max_batch=settings.max_batch,
            end_tokens=tuple(sorted(find_end_tokens(replica.model.hf, replica.tokenizer))),
            lora_rank=settings.lora_rank,
            memory=settings.server_share(torch.cuda.device_count()),
        )
        launcher, limits = _launcher(role, settings), (settings.start_timeout_s, settings.timeout_s)
        servers = [Server(number, launcher, config, *limits) for number in range(settings.servers)]
        transfer = WeightTransfer(self.ranks, replica, settings.exchange)
        return ServerPool(servers, replica, transfer, self.versions.__getitem__, self._states)

    def member(self, name: str) -> None:
        if name not in self.versions:
            self.replica.member(name)  # raises if the member is invalid
            self.ranks.call("member", name)
            self.versions[name] = 0

    def digest(self, name: str | None = None, masters: bool = True) -> str:
        cached = self._digests.get((name, masters))
        if cached is None or cached[0] != self.versions:
            cached = dict(self.versions), self.ranks.call("digest", name, masters)[0]
            self._digests[name, masters] = cached
        return cached[1]

    def call_by_row(self, method: str, *arguments: Any) -> dict[int, Any]:
        """row -> result, from all ranks, each of which computes some of the rows"""
        return dict(chain.from_iterable(self.ranks.call(method, *arguments)))

    def hidden_scan(
        self, name: str, prompts: Sequence[np.ndarray], layers: Sequence[int], poolings: Sequence[str]
    ) -> dict[tuple[int, str], np.ndarray]:
        states = {(i, p): np.zeros((len(prompts), self.replica.model.width), np.float32) for i in layers for p in poolings}
        for rows, pooled in chain.from_iterable(self.ranks.call("hidden_scan", name, prompts, list(layers), list(poolings))):
            for layer_and_pooling, states_RD in pooled.items():
                states[layer_and_pooling][rows] = states_RD
        return states

    def _states(self, name: str, prompts: Sequence[np.ndarray], hidden: HiddenState) -> np.ndarray:
        return self.hidden_scan(name, prompts, [hidden.layer], [hidden.pooling])[hidden]


class ShardedScorer:
    """Scores tokens under one member, or under its reference."""

    def __init__(self, engine: ShardedEngine, name: str, reference: bool = False):
        self._engine, self._model = engine, (name, reference)

    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        by_row = self._engine.call_by_row("score", "logprobs", self._model, prompts, completions, temperature)
        return [by_row.get(i, np.zeros(0, np.float32)) for i in range(len(prompts))]

    def distributions(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], top_k: int | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        vocabulary = self._engine.replica.model.vocabulary
        if top_k is not None and not 1 <= top_k <= vocabulary:
            raise TacitError(f"top_k = {top_k} must be between 1 and the vocabulary of {vocabulary}.")
        width = top_k or vocabulary
        empty = (np.zeros((0, width), np.int64), np.zeros((0, width), np.float32))
        by_row = self._engine.call_by_row("score", "distributions", self._model, prompts, completions, top_k)
        return [by_row.get(i, empty) for i in range(len(prompts))]


class ShardedPolicy(PolicyBase):
    """One adapter of a sharded model, or the whole model if all parameters are trained. Views as in `LocalPolicy`."""

    def __init__(self, engine: ShardedEngine, name: str = MAIN):
        super().__init__(engine.replica.tokenizer, engine.replica.codec.context_limit)
        self.engine, self.name, self.poolings = engine, name, engine.poolings
        engine.member(name)
        self._scorer = ShardedScorer(engine, name)

    def sample(self, requests: Sequence[Request], sampling: Sampling, hidden: HiddenState | None = None) -> list[Completion]:
        return self.engine.samplers.sample(self.name, requests, sampling, hidden)

    def open_scheduler(self, sampling: Sampling, hidden: HiddenState | None = None) -> Scheduler:
        return self.engine.samplers.open_scheduler(self.name, sampling, hidden)

    def hidden_states(self, prompts: Sequence[np.ndarray], layer: int, pooling: str = "last") -> np.ndarray:
        return self.hidden_scan(prompts, [layer], [pooling])[layer, pooling]

    def hidden_scan(
        self, prompts: Sequence[np.ndarray], layers: Sequence[int], poolings: Sequence[str]
    ) -> dict[tuple[int, str], np.ndarray]:
        if "attention" in poolings and "attention" not in self.poolings:
            raise TacitError("pooling 'attention' needs the whole model; use --engine.gather whole.")
        return self.engine.hidden_scan(self.name, prompts, layers, poolings)

    def values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        by_row = self.engine.call_by_row("values", self.name, prompts)
        return np.array([by_row[i] for i in range(len(prompts))], np.float32)

    def update(self, batch: Batch, losses: Sequence[LossTerm], lr: float) -> dict[str, float]:
        """One AdamW step on the whole batch, divided among the ranks."""
        try:
            metrics = self.engine.ranks.call("update", self.name, batch, list(losses), lr)[0]
        except NonFiniteLoss as failure:
            failure.batch = batch
            raise
        self.engine.versions[self.name] += 1
        return metrics

    def gradient_norm(self, batch: Batch, losses: Sequence[LossTerm]) -> float:
        return self.engine.ranks.call("update", self.name, batch, list(losses), None)[0]["grad_norm"]

    def reference(self) -> Scorer:
        if not self.engine.settings.lora_rank and self.name not in self.engine.references:
            raise TacitError(NO_REFERENCE)
        return ShardedScorer(self.engine, self.name, reference=True)

    def freeze_reference(self) -> None:
        self.engine.ranks.call("freeze_reference", self.name)
        self.engine.references.add(self.name)

    def begin_stage(self) -> None:
        self.engine.ranks.call("begin_stage", self.name)

    def check_layer(self, layer: int) -> None:
        self.engine.replica.model.check_layer(layer)

    def adapter(self, name: str) -> ShardedPolicy:
        return self if name == self.name else ShardedPolicy(self.engine, name)

    @property
    def numbers(self) -> str:
        """Dtype, device and ranks: `float32 on cpu, 2 ranks`."""
        dtype = str(self.engine.replica.model.hf.dtype).removeprefix("torch.")
        return f"{dtype} on {self.engine.device}, {self.engine.ranks.size} ranks"

    @property
    def repeatable(self) -> bool:
        """Batches of the sampling servers depend on timing anyway."""
        return False

    @property
    def written_tokens(self) -> int:
        return self.engine.samplers.written_tokens

    @property
    def version(self) -> int:
        return self.engine.versions[self.name]

    def digest(self) -> str:
        return self.engine.digest(None if self.name == MAIN else self.name)

    def save(self, directory: Path, optimizer: bool = True) -> None:
        """Save into an empty directory: `model/` or `adapters/NAME/` for transformers and peft, and `shards/`, from which any
        number of ranks resumes exactly. The manifest is written last and marks the checkpoint as complete."""
        engine, directory = self.engine, Path(directory).absolute()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            members = engine.ranks.call("save", directory / SHARDS, optimizer)[0]
            for name in members:
                engine.replica.sync_weights(name)
            export(engine.replica, directory)
            manifest = {
                "format": FORMAT,
                "lora": bool(engine.settings.lora_rank),
                "optimizer": optimizer,
                "digest": engine.digest(masters=optimizer),
                "ranks": engine.ranks.size,
                "members": members,
            }
            (directory / MANIFEST).write_text(json.dumps(manifest, indent=1))
        except OSError as error:
            raise cannot_write(directory, error) from error

    def load(self, directory: Path) -> None:
        engine, directory = self.engine, Path(directory).absolute()
        manifest = read_manifest(directory, bool(engine.settings.lora_rank), engine.versions)
        if not (directory / SHARDS).is_dir():
            raise TacitError(
                f"checkpoint {directory} has no {SHARDS}/: another engine wrote it, or it is incomplete. Use that engine, or "
                f"start from its weights with --model {directory}."
            )
        if (directory / SHARDS / PICKLED).exists() and not (directory / SHARDS / LAYOUT).exists():
            raise TacitError(
                f"checkpoint {directory} is of an older version: {SHARDS}/{PICKLED} is a pickle, which is never loaded. Start "
                f"from its weights with --model {directory}."
            )
        for name in manifest["members"]:
            engine.member(name)
        engine.ranks.call("load", directory / SHARDS, manifest["members"], manifest["optimizer"])
        for name, entry in manifest["members"].items():
            engine.versions[name] += 1
            (engine.references.add if entry["reference"] else engine.references.discard)(name)
        if engine.digest() != manifest["digest"]:
            raise TacitError(f"checkpoint {directory} is damaged: its weights do not match the digest saved with them.")

    def pin_weights(self) -> AbstractContextManager[None]:
        if self.engine.servers is None:
            raise TacitError("sampling during updates needs servers; set --engine.servers 1.")
        return self.engine.servers.pin_weights(list(self.engine.versions))

    def close(self) -> None:
        self.engine.ranks.close()
        if self.engine.servers is not None:
            self.engine.servers.close()
