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
from tacit.core.types import Completion, HiddenState
from tacit.engines.local.adapters import MAIN
from tacit.engines.local.capacity import MIN_USEFUL_TOKENS
from tacit.engines.local.engine import PolicyBase
from tacit.engines.local.model import load_pretrained, resolve_device, set_threads
from tacit.engines.local.policy import NO_REFERENCE
from tacit.engines.models.sources import find_checkpoint, find_pretrained
from tacit.engines.sharded.checkpoint import load, save
from tacit.engines.sharded.engine import ShardedEngine, ShardedScorer, join_answers, start_ranks
from tacit.engines.sharded.group import RankGroup
from tacit.engines.sharded.settings import ShardedSettings
from tacit.planning.plans import check_memory_fits
from tacit.planning.shapes import shape_of_config
from tacit.planning.timing import Training

# Whether a model fits the GPUs of the ranks, asked before anything of it is loaded; the plan says what would.


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
        if (odd := [pooling for pooling in poolings if pooling == "attention"]) and "attention" not in self.poolings:
            raise TacitError(f"pooling {odd[0]!r} cannot be had of a model gathered layer by layer; use --engine.gather whole.")
        return self.engine.hidden_scan(self.name, prompts, layers, poolings)

    @property
    def poolings(self) -> tuple[str, ...]:
        return self.engine.poolings

    def values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        found = dict(join_answers(self.engine.ranks.ask("values", self.name, prompts)))
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
        save(self.engine, Path(directory), optimizer)

    def load(self, directory: Path) -> None:
        load(self.engine, Path(directory))

    def pin_weights(self) -> AbstractContextManager[None]:
        """Until the end of the block samples are drawn from the weights as they are now, whatever is learned meanwhile."""
        return self.engine.pin_weights()

    def close(self) -> None:
        """End the ranks and the servers."""
        self.engine.close()
