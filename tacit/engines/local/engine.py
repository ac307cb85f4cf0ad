"""What every view of a local policy shares: one model in memory, its tokenizer, its sampler, and its members."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.core.chat import Chat, Message
from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling, Scorer
from tacit.core.types import Completion
from tacit.engines.local.adapters import FROZEN_SUFFIX, MAIN, LoraAdapters
from tacit.engines.local.memory import AdaptiveBudget, empty_cache, free_memory, is_fragmented, is_nearly_full, retry_on_oom
from tacit.engines.local.model import LanguageModel
from tacit.engines.local.scheduler import LocalSampler, LocalScheduler
from tacit.engines.local.scoring import ModelScorer
from tacit.engines.local.settings import EngineSettings
from tacit.engines.local.tokenizer import TextCodec, make_codec
from tacit.engines.local.update import MasterWeights, Updater

DEFAULT_BUDGET = {"cpu": 2048, "cuda": 65_536}
"""on a CPU the activations of a micro-batch should stay in the cache; on a GPU they should fill it"""


@dataclass(eq=False)
class AdapterState:
    """What belongs to one adapter (or to the whole model, where all parameters are trained)."""

    parameters: dict[str, nn.Parameter]
    value_head: nn.Linear | None
    settings: EngineSettings
    reference: LanguageModel | str | None = None
    """a frozen copy of the model, or the name of the frozen adapter"""
    version: int = 0
    """how often its weights have changed: by an update, or by being loaded"""
    _weights: MasterWeights | None = field(default=None, repr=False)

    @property
    def weights(self) -> MasterWeights:
        """Made on first use: a policy that only plays needs no optimiser."""
        if self._weights is None:
            self._weights = MasterWeights(self.parameters, self.settings)
        return self._weights

    @property
    def steps(self) -> int:
        """optimiser steps taken"""
        return self._weights.steps if self._weights else 0

    @property
    def has_trained(self) -> bool:
        return self.steps > 0

    def reset_training(self) -> None:
        """Drop the optimiser and its masters: the parameters are about to be, or have been, replaced."""
        self._weights = None

    def trained(self, masters: bool = True) -> dict[str, torch.Tensor]:
        """The weights as trained, or as the model uses them; the two differ where bfloat16 weights have float32 masters."""
        return dict(self._weights.master if self._weights and masters else self.parameters)


def update_digest(total: Any, member: str, name: str, tensor: torch.Tensor) -> None:
    """Add one trained tensor to a digest, as float32. Every engine digests the same weights alike."""
    total.update(f"{member} {name} {tuple(tensor.shape)}\n".encode())
    total.update(tensor.detach().cpu().float().contiguous().numpy().data)  # a GPU may have no room for a float32 copy


def make_value_head(width: int, device: torch.device) -> nn.Linear:
    """Zeros: an untrained critic predicts nothing, and the first advantages are plain returns."""
    head = nn.Linear(width, 1, device=device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class LocalEngine:
    """One model in memory, its tokenizer, its sampler, and its members. Shared by every view of the policy."""

    def __init__(self, hf: Any, tokenizer: Any, settings: EngineSettings, seed: int):
        self.settings, self.seed, self.tokenizer = settings, seed, tokenizer
        self.codec = make_codec(tokenizer, hf.config)
        self.device = next(hf.parameters()).device
        chosen = settings.token_budget or DEFAULT_BUDGET[self.device.type]
        self.update_budget, self.scoring_budget = AdaptiveBudget(chosen, self.device), AdaptiveBudget(chosen, self.device)
        """tokens in one pass: an update keeps activations for its gradient, and fits with far fewer"""
        self._phase = ""
        if settings.gradient_checkpointing:
            hf.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.sampler: LocalSampler | None = None
        self.adapters = LoraAdapters(hf, settings, seed, self.weights_changed) if settings.lora_rank else None
        self.model = self.wrap_model(hf, lean=not settings.gradient_checkpointing)
        self.members: dict[str, AdapterState] = {}
        self._hashed: dict[tuple[str | None, bool], tuple[Any, str]] = {}
        self.member(MAIN)

    def wrap_model(self, hf: Any, lean: bool = True) -> LanguageModel:
        """The model as it is used here. It is tried out at once, and that takes memory."""
        made = partial(LanguageModel, hf, compiled=self.settings.compile, lean=lean)
        return retry_on_oom(made, self.device, "trying out the model")

    def copy_frozen(self) -> Any:
        """Of the model, for reference."""
        copied = partial(copy.deepcopy, self.model.hf)
        return retry_on_oom(copied, self.device, "copying the model for reference").requires_grad_(False)

    def member(self, name: str) -> AdapterState:
        if name in self.members:
            return self.members[name]
        if self.adapters is None and name != MAIN:
            raise TacitError(f"adapter {name!r} needs LoRA: this policy trains all parameters. Set lora_rank, e.g. to 64.")
        if name.endswith(FROZEN_SUFFIX):
            raise TacitError(f"adapter name {name!r} is reserved: names ending in {FROZEN_SUFFIX!r} hold frozen references.")
        if self.adapters:
            self.adapters.make(name)
            parameters = self.adapters.parameters(name)
        else:
            parameters = dict(self.model.hf.named_parameters())
        head = make_value_head(self.model.width, self.device) if self.settings.value_head else None
        if head is not None:
            parameters |= {f"value_head.{n}": p for n, p in head.named_parameters()}
        self.members[name] = AdapterState(parameters, head, self.settings)
        return self.members[name]

    def forget(self, name: str) -> None:
        """Give up an adapter and everything that belongs to it; views of it are of no use any more."""
        if self.adapters is None or name not in self.members or name == MAIN:
            raise TacitError(f"adapter {name!r} cannot be given up: it is none here, or the one the policy began with.")
        if self.sampler is not None:
            self.sampler.forget(name)
        self.adapters.drop(name)
        del self.members[name]
        self._hashed = {key: known for key, known in self._hashed.items() if key[0] not in (None, name)}

    def activate(self, name: str | None) -> None:
        if self.adapters:
            self.adapters.activate(name)

    def enter(self, phase: str) -> None:
        """Playing and learning need memory of other shapes: on a crowded GPU neither keeps what only the other can use. Nor
        does an update keep pieces that are of no use to the next, whose shapes are others."""
        useless = phase != self._phase or (phase == "learning" and is_fragmented(self.device))
        if useless and is_nearly_full(self.device):
            empty_cache(self.device)
        self._phase = phase

    def make_room(self) -> None:
        """Give up whatever can be made again, of this model and of others in this process."""
        free_memory(self.device)

    def open_scheduler(self, name: str, sampling: Sampling, layer: int | None) -> LocalScheduler:
        return self._sampling().open_scheduler(sampling, layer, partial(self._play, name))

    def open_shared_scheduler(self, sampling: Sampling) -> LocalScheduler | None:
        """A scheduler whose requests each name their adapter; all adapters decode in one batch. None where this
        model cannot: it has no adapters, or is too large to have a copy for each."""
        if self.adapters is None or not self._sampling().mixes:
            return None
        return self._sampling().open_scheduler(
            sampling, version=lambda: sum(member.version for member in self.members.values())
        )

    def sample(self, name: str, requests: Sequence[Request], sampling: Sampling, layer: int | None) -> list[Completion]:
        return self._sampling().sample(requests, sampling, layer, partial(self._play, name))

    def _sampling(self) -> LocalSampler:
        if self.sampler is None:
            self.sampler = LocalSampler(self.model.hf, self.tokenizer, self.device, max_batch=self.settings.max_batch)
        return self.sampler

    def _play(self, name: str) -> int:
        """This member writes now. Returns the version of its weights."""
        self.enter("playing")
        self.activate(name)
        return self.members[name].version

    def scorer(self, adapter: str | None, model: LanguageModel | None = None) -> ModelScorer:
        ready = (lambda: None) if model else (lambda: self.activate(adapter))
        return ModelScorer(model or self.model, self.codec, self.scoring_budget, ready)

    def learning(self, name: str) -> Updater:
        member, budget = self.member(name), self.update_budget
        what = "making float32 copies of the weights that are trained"
        weights = retry_on_oom(lambda: member.weights, self.device, what)
        return Updater(self.model, self.codec, weights, self.settings, budget, self.seed, member.value_head)

    def weights_changed(self, *names: str) -> None:
        """The weights of these members moved or, where none is named, another adapter is active. The sampler keeps copies."""
        for name in names:
            self.members[name].version += 1
        if self.sampler is not None:
            self.sampler.weights_changed()

    def digest(self, name: str | None = None, masters: bool = True) -> str:
        """sha256 over the trained tensors of one member, or of all, as float32, in name order. What has not moved since it was
        asked for is not hashed again: an evaluation, its checkpoint and the summary share one reading of the weights."""
        members = {n: m for n, m in sorted(self.members.items()) if name in (None, n)}
        tensors = {n: sorted(member.trained(masters).items()) for n, member in members.items()}
        state = tuple(
            (n, members[n].version, tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for _, t in own))
            for n, own in tensors.items()
        )
        if self._hashed.get((name, masters), (None, ""))[0] != state:
            total = hashlib.sha256()
            for n, own in tensors.items():
                for tensor_name, tensor in own:
                    update_digest(total, n, tensor_name, tensor)
            self._hashed[name, masters] = state, total.hexdigest()
        return self._hashed[name, masters][1]


# The side of a policy that its codec and its scorer have alone, wherever its weights are.


class PolicyBase:
    codec: TextCodec
    _scorer: Scorer

    @property
    def context_limit(self) -> int:
        return self.codec.context_limit

    def encode_prompt(self, text: str) -> np.ndarray:
        return self.codec.encode_prompt(text)

    def encode_prompts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode_prompt` of each, on several CPUs where there are several."""
        return self.codec.encode_prompts(texts)

    def encode_completion(self, text: str) -> np.ndarray:
        return self.codec.encode_completion(text)

    def encode_chat(self, chat: Chat) -> np.ndarray:
        return self.codec.encode_chat(chat)

    def encode_answer(self, chat: Chat, answer: Message) -> np.ndarray:
        return self.codec.encode_answer(chat, answer)

    def decode(self, tokens: np.ndarray) -> str:
        return self.codec.decode(tokens)

    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        return self._scorer.logprobs(prompts, completions, temperature)

    def distributions(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], top_k: int | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        return self._scorer.distributions(prompts, completions, top_k)
