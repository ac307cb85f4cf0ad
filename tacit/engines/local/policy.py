"""`LocalPolicy`: sampling, scoring and updates with one copy of the weights in this process, on CPU or one GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from tacit.core.credit import Batch
from tacit.core.errors import TacitError
from tacit.core.protocols import LossTerm, Request, Sampling, Scheduler, Scorer
from tacit.core.types import Completion, HiddenState
from tacit.engines.local import checkpoint
from tacit.engines.local.engine import FROZEN_SUFFIX, MAIN, LocalEngine, PolicyBase
from tacit.engines.local.memory import check_memory, retry_on_oom
from tacit.engines.local.model import LanguageModel, enable_determinism, load_pretrained, resolve_device, set_threads
from tacit.engines.local.scheduler import LocalSampler
from tacit.engines.local.scoring import ModelScorer
from tacit.engines.local.settings import EngineSettings
from tacit.engines.local.update import plan_token_budget
from tacit.engines.models.bases import Texts, find_checkpoint
from tacit.engines.models.tiny import TinySettings

NO_REFERENCE = (
    "this policy trains all its parameters, so it has no frozen base as reference; call freeze_reference() before training, or "
    "train a LoRA adapter (--engine.lora-rank)."
)


def load_policy(
    model: str,
    settings: EngineSettings | None = None,
    seed: int = 0,
    world_texts: Texts | None = None,
    tiny: TinySettings | None = None,
) -> LocalPolicy:
    """A policy from a checkpoint directory, a hub id, a packaged base (`tiny-base`), or a tiny size (`tiny`, `tiny-4m`). A
    tiny policy trains its tokenizer on `world_texts` (texts, or a function that returns them); `tiny` overrides its sizes."""
    settings = settings or EngineSettings()
    device, dtype = resolve_device(settings)
    set_threads(settings.threads)
    if settings.repeatable:
        enable_determinism(device)
    source = find_checkpoint(model, seed, world_texts, tiny)
    check_memory(source, device, dtype, settings)
    hf, tokenizer = load_pretrained(source, device, dtype)
    return LocalPolicy(LocalEngine(hf, tokenizer, settings, seed))


class LocalPolicy(PolicyBase):
    """One adapter of a local model, or the whole model if all parameters are trained. Views made by `adapter` share the base.
    `save` and `load` cover all adapters; `digest` covers all on the main policy, and one on a view."""

    def __init__(self, engine: LocalEngine, name: str = MAIN):
        super().__init__(engine.tokenizer, engine.codec.context_limit)
        self.engine, self.name = engine, name
        self._member = engine.member(name)
        self._scorer: ModelScorer = engine.scorer(name)
        self._pinned: LocalSampler | None = None
        self._pinned_version = 0

    def sample(self, requests: Sequence[Request], sampling: Sampling, hidden: HiddenState | None = None) -> list[Completion]:
        if self._pinned is not None:
            return self._pinned.sample(requests, sampling, hidden, lambda: self._pinned_version)
        return self.engine.sample(self.name, requests, sampling, hidden)

    def open_scheduler(self, sampling: Sampling, hidden: HiddenState | None = None) -> Scheduler:
        if self._pinned is not None:
            return self._pinned.open_scheduler(sampling, hidden, lambda: self._pinned_version)
        return self.engine.open_scheduler(self.name, sampling, hidden)

    @contextmanager
    def pin_weights(self) -> Iterator[None]:
        """Within this context, sample from a copy of the trained weights, so that another thread may update them."""
        self._pinned, self._pinned_version = self.engine.copy_sampler(self.name), self.version
        try:
            yield
        finally:
            self._pinned = None

    def hidden_states(self, prompts: Sequence[np.ndarray], layer: int, pooling: str = "last") -> np.ndarray:
        return self.hidden_scan(prompts, [layer], [pooling])[layer, pooling]

    def hidden_scan(
        self, prompts: Sequence[np.ndarray], layers: Sequence[int], poolings: Sequence[str]
    ) -> dict[tuple[int, str], np.ndarray]:
        return self._scorer.hidden_scan(prompts, layers, poolings)

    @property
    def poolings(self) -> tuple[str, ...]:
        """The poolings this model supports; `attention` is not available for every architecture."""
        return self._scorer.poolings

    def values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        head = self._member.value_head
        if head is None:
            raise TacitError("this policy has no value head; set --engine.value-head.")
        return self._scorer.values(prompts, head)

    def update(self, batch: Batch, losses: Sequence[LossTerm], lr: float) -> dict[str, float]:
        """One AdamW step on the whole batch. The metrics have `token_budget` if lack of memory has lowered it."""
        metrics, budget = self._update(batch, losses, lr), self.engine.update_budget
        self.engine.weights_changed(self.name)
        return metrics | ({"token_budget": float(budget.current)} if budget.current < budget.limit else {})

    def gradient_norm(self, batch: Batch, losses: Sequence[LossTerm]) -> float:
        return self._update(batch, losses, None)["grad_norm"]

    def _update(self, batch: Batch, losses: Sequence[LossTerm], lr: float | None) -> dict[str, float]:
        engine = self.engine
        engine.activate(self.name)
        engine.enter_phase("update")
        updater, budget = engine.make_updater(self.name), engine.update_budget
        if budget.can_grow:
            budget.set_current(plan_token_budget(updater, batch, losses))
        return updater.update(batch, losses, lr)

    def reference(self) -> Scorer:
        frozen = self._member.reference
        if isinstance(frozen, LanguageModel):
            return self.engine.scorer(None, frozen)
        if self.engine.adapters:
            return self.engine.scorer(frozen)
        raise TacitError(NO_REFERENCE)

    def freeze_reference(self) -> None:
        if self.engine.adapters:
            self.engine.adapters.copy(self.name, self.name + FROZEN_SUFFIX)
            self._member.reference = self.name + FROZEN_SUFFIX
            return
        self._member.reference = self.engine.wrap_model(self.engine.copy_frozen())

    def begin_stage(self) -> None:
        if self._member.steps:
            self._member.weights.reset_optimizer()

    def check_layer(self, layer: int) -> None:
        self.engine.model.check_layer(layer)

    def adapter(self, name: str) -> LocalPolicy:
        return self if name == self.name else LocalPolicy(self.engine, name)

    @property
    def numbers(self) -> str:
        return f"{str(self.engine.model.hf.dtype).removeprefix('torch.')} on {self.engine.device.type}"

    @property
    def repeatable(self) -> bool:
        """On a CPU, and on a GPU with `--engine.repeatable`."""
        return self.engine.settings.repeatable or self.engine.device.type == "cpu"

    @property
    def written_tokens(self) -> int:
        return self.engine.sampler.written_tokens if self.engine.sampler else 0

    @property
    def version(self) -> int:
        return self._member.version

    def digest(self) -> str:
        return self.engine.digest(None if self.name == MAIN else self.name)

    def save(self, directory: Path, optimizer: bool = True) -> None:
        """Save into an empty directory. Without the optimizer, the weights and digest are the model's, not the masters'."""
        engine = self.engine
        save = partial(checkpoint.save, engine, Path(directory), optimizer)
        retry_on_oom(save, engine.device, "saving a checkpoint")

    def load_adapter(self, directory: Path) -> None:
        """Load the adapter of a peft directory for sampling. Optimizer state and reference are dropped."""
        checkpoint.load_adapter(self.engine, self.name, Path(directory))

    def load(self, directory: Path) -> None:
        load = partial(checkpoint.load, self.engine, Path(directory))
        expected = retry_on_oom(load, self.engine.device, "loading a checkpoint")
        if expected and self.engine.digest() != expected:
            raise TacitError(f"checkpoint {directory} is damaged: its weights do not match the digest saved with them.")
