"""The sharded policy: what the protocols ask for, of ranks that hold the model in shards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch

from tacit.core.credit import Batch
from tacit.core.errors import NonFiniteLoss, TacitError
from tacit.core.protocols import LossTerm, ModelSource, Request, Sampling, Scheduler, Scorer
from tacit.core.trust import require_trust
from tacit.core.types import Completion, HiddenState
from tacit.engines.local.adapters import MAIN
from tacit.engines.local.capacity import MIN_USEFUL_TOKENS
from tacit.engines.local.checkpoint import FORMAT, MANIFEST, export, read_manifest
from tacit.engines.local.engine import PolicyBase
from tacit.engines.local.model import load_pretrained, resolve_device, set_threads
from tacit.engines.local.policy import NO_REFERENCE
from tacit.engines.models.bases import find_checkpoint, find_pretrained
from tacit.engines.sharded.engine import ShardedEngine, ShardedScorer, start_ranks
from tacit.engines.sharded.group import RankGroup
from tacit.engines.sharded.settings import ShardedSettings
from tacit.engines.sharded.shards import LAYOUT, PICKLED
from tacit.planning.plans import check_memory_fits
from tacit.planning.shapes import shape_of_config
from tacit.planning.timing import Training

SHARDS = "shards"


def check_room(checkpoint: str, settings: ShardedSettings, device: torch.device, dtype: torch.dtype) -> None:
    """Whether a model fits the GPUs of the ranks, before anything of it is loaded; the plan says what would."""
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
    check_memory_fits(
        told,
        checkpoint,
        settings.ranks,
        (1.0 - servers) * torch.cuda.get_device_properties(device).total_memory,
        Training(settings.lora_rank, settings.gradient_checkpointing, settings.gather),
        MIN_USEFUL_TOKENS,
        dtype.itemsize,
        samples=not settings.servers,
    )


def load_policy(model: ModelSource, settings: ShardedSettings, ranks: RankGroup | None = None) -> ShardedPolicy:
    """A policy from whatever `model.name` stands for; with `ranks`, in processes that are there already, in the place of what
    they held."""
    checkpoint = find_checkpoint(model.name, model.seed, model.texts, model.sizes)
    device, dtype = resolve_device(settings)
    set_threads(settings.threads)
    if not settings.address:  # the GPUs are those of this machine, and this process is the first to read all of the model
        check_room(checkpoint, settings, device, dtype)
    if settings.servers:
        device = torch.device("cpu")  # what is kept here is only saved
    hf, tokenizer = load_pretrained(checkpoint, device, dtype)  # first: what cannot be loaded is said before ranks start
    group = ranks or start_ranks(settings)
    try:
        return ShardedPolicy(ShardedEngine(hf, tokenizer, checkpoint, settings, model.seed, group))
    except BaseException:
        if ranks is None:
            group.close()
        raise


class ShardedPolicy(PolicyBase):
    """One adapter of a sharded model, or the whole model where all parameters are trained. Views made by `adapter` share the
    ranks; `save` and `load` take all of them, `digest` all on the policy that was loaded and one on a view."""

    def __init__(self, engine: ShardedEngine, name: str = MAIN):
        self.engine, self.name, self.codec = engine, name, engine.replica.codec
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
            raise TacitError("pooling 'attention' cannot be had of a model gathered layer by layer; use --engine.gather whole.")
        return self.engine.hidden_scan(self.name, prompts, layers, poolings)

    @property
    def poolings(self) -> tuple[str, ...]:
        return self.engine.poolings

    def values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        found = self.engine.ask_rows("values", self.name, prompts)
        return np.array([found[i] for i in range(len(prompts))], np.float32)

    def update(self, batch: Batch, losses: Sequence[LossTerm], lr: float) -> dict[str, float]:
        """One AdamW step on the whole batch, of which each rank takes its share."""
        try:
            metrics = self.engine.ranks.ask("update", self.name, batch, list(losses), lr)[0]
        except NonFiniteLoss as failure:
            failure.batch = batch
            raise
        self.engine.versions[self.name] += 1
        return metrics

    def gradient_norm(self, batch: Batch, losses: Sequence[LossTerm]) -> float:
        return self.engine.ranks.ask("update", self.name, batch, list(losses), None)[0]["grad_norm"]

    def reference(self) -> Scorer:
        if not self.engine.settings.lora_rank and self.name not in self.engine.references:
            raise TacitError(NO_REFERENCE)
        return ShardedScorer(self.engine, self.name, reference=True)

    def freeze_reference(self) -> None:
        self.engine.ranks.ask("freeze_reference", self.name)
        self.engine.references.add(self.name)

    def begin_stage(self) -> None:
        self.engine.ranks.ask("begin_stage", self.name)

    def check_layer(self, layer: int) -> None:
        self.engine.replica.model.check_layer(layer)

    def adapter(self, name: str) -> ShardedPolicy:
        return self if name == self.name else ShardedPolicy(self.engine, name)

    @property
    def numbers(self) -> str:
        """What it computes with: `float32 on cpu, 2 ranks`."""
        dtype = str(self.engine.replica.model.hf.dtype).removeprefix("torch.")
        return f"{dtype} on {self.engine.device}, {self.engine.ranks.size} ranks"

    @property
    def written_tokens(self) -> int:
        return self.engine.samplers.written_tokens

    @property
    def version(self) -> int:
        return self.engine.versions[self.name]

    def digest(self) -> str:
        return self.engine.digest(None if self.name == MAIN else self.name)

    def save(self, directory: Path, optimizer: bool = True) -> None:
        """Into an empty directory: `model/` or `adapters/NAME/` for transformers and peft, and `shards/`, with which any number
        of ranks goes on exactly. The manifest (`policy.json`) is written last: without it a checkpoint does not count. Without
        the optimizer, what is saved (and its digest) is the model as it samples, not its float32 masters."""
        engine, directory = self.engine, Path(directory).absolute()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            members = engine.ranks.ask("save", directory / SHARDS, optimizer)[0]
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
            raise TacitError(f"cannot write the checkpoint {directory}: {error}. Earlier checkpoints are untouched.") from error

    def load(self, directory: Path) -> None:
        """Put a saved policy into this one, bit for bit."""
        engine, directory = self.engine, Path(directory).absolute()
        manifest = read_manifest(directory, bool(engine.settings.lora_rank), engine.versions)
        if not (directory / SHARDS).is_dir():
            raise TacitError(
                f"checkpoint {directory} has no {SHARDS}/: another engine wrote it, or it is incomplete. Go on with that "
                f"engine, or start from its weights with --model {directory}."
            )
        pickled = (directory / SHARDS / PICKLED).exists() and not (directory / SHARDS / LAYOUT).exists()
        if pickled:
            require_trust(f"checkpoint {directory} is of an older version and would run the pickle {SHARDS}/{PICKLED}")
        for name in manifest["members"]:
            engine.member(name)
        engine.ranks.ask("load", directory / SHARDS, manifest["members"], manifest["optimizer"], pickled)
        for name, told in manifest["members"].items():
            engine.versions[name] += 1
            (engine.references.add if told["reference"] else engine.references.discard)(name)
        if engine.digest() != manifest["digest"]:
            raise TacitError(f"checkpoint {directory} is damaged: its weights do not match the digest saved with them.")

    def pin_weights(self) -> AbstractContextManager[None]:
        """Until the end of the block samples are drawn from the weights as they are now, whatever is learned meanwhile."""
        if self.engine.servers is None:
            raise TacitError("only servers can go on with weights that are learned from meanwhile: --engine.servers 1.")
        return self.engine.servers.pin_weights(list(self.engine.versions))

    def close(self) -> None:
        self.engine.ranks.close()
        if self.engine.servers is not None:
            self.engine.servers.close()
