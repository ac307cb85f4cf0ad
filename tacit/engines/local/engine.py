"""`LocalEngine`: one model in memory with its tokenizer, sampler and LoRA adapters. All views of a local policy share it."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.core.errors import TacitError
from tacit.core.protocols import PolicyHooks, Request, Sampling, Scorer
from tacit.core.seeds import derive
from tacit.core.types import Completion, HiddenState
from tacit.engines.local.fast.kernels import fast_paths
from tacit.engines.local.memory import AdaptiveBudget, empty_cache, is_fragmented, is_nearly_full, retry_on_oom
from tacit.engines.local.model import LanguageModel
from tacit.engines.local.scheduler import LocalSampler, LocalScheduler
from tacit.engines.local.scoring import ModelScorer
from tacit.engines.local.settings import EngineSettings
from tacit.engines.local.tokenizer import TextCodec, make_codec
from tacit.engines.local.update import MasterWeights, Updater

MAIN = "default"  # the adapter a policy starts with
FROZEN_SUFFIX = "--frozen"  # suffix of the adapter that holds the frozen reference of another


class LoraAdapters:
    """The LoRA adapters of one model. At most one is active. `on_switch` is called when the active adapter changes."""

    def __init__(self, hf: Any, settings: EngineSettings, seed: int, on_switch: Callable[[], None]):
        self.hf, self.settings, self.seed, self._on_switch = hf, settings, seed, on_switch
        self.names: list[str] = []
        self.peft: Any = None
        self._active: str | None = None
        self.add(MAIN)

    def add(self, name: str) -> None:
        """Create an adapter with B = 0, so it has no effect yet, unless it exists. Its seed depends on its name only."""
        import peft

        if name in self.names:
            return
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise TacitError(f"adapter name {name!r} may only have letters, digits, '-' and '_'.")
        rank = self.settings.lora_rank
        config = peft.LoraConfig(
            r=rank,
            lora_alpha=self.settings.lora_alpha or 2 * rank,  # type: ignore[arg-type]
            lora_dropout=self.settings.lora_dropout,
            target_modules=list(self.settings.lora_targets),
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.seed, "adapter", name))
            try:
                # In the base model's dtype: MasterWeights holds the float32 copies.
                if self.peft is None:
                    self.peft = peft.get_peft_model(self.hf, config, adapter_name=name, autocast_adapter_dtype=False)
                else:
                    self.peft.add_adapter(name, config, autocast_adapter_dtype=False)
            except ValueError as error:
                available = {n.rsplit(".", 1)[-1] for n, m in self.hf.named_modules() if isinstance(m, nn.Linear)}
                raise TacitError(
                    f"cannot put a LoRA adapter on {', '.join(self.settings.lora_targets)}: {error} "
                    f"Linear modules of this model: {', '.join(sorted(available))}."
                ) from error
        self.peft.eval()
        self.names.append(name)
        self._active = ""  # peft may have activated it, so activate explicitly on the next use

    def remove(self, name: str) -> None:
        if self._active == name:
            self.activate(MAIN)
        self.peft.delete_adapter(name)
        self.names.remove(name)
        self._active = ""

    def activate(self, name: str | None) -> None:
        """Activate this adapter; None activates the bare base model."""
        if name == self._active:
            return
        if name is None:
            self.peft.base_model.disable_adapter_layers()
        else:
            self.peft.base_model.enable_adapter_layers()
            self.peft.set_adapter(name)
        self._active = name
        self._on_switch()

    def parameters(self, name: str) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.hf.named_parameters() if ".lora_" in n and f".{name}." in n}

    @torch.no_grad()
    def copy(self, source: str, target: str) -> None:
        """Copy the weights of `source` to `target`, which is created if needed."""
        self.add(target)
        copies = self.parameters(target)
        for name, parameter in self.parameters(source).items():
            copies[name.replace(f".{source}.", f".{target}.")].copy_(parameter)
        if self._active in (target, ""):
            self._on_switch()


DEFAULT_BUDGET = {"cpu": 2048, "cuda": 65_536}
"""tokens per pass: few on a CPU, so activations stay in its cache; many on a GPU, to use it fully"""


@dataclass(eq=False)
class AdapterState:
    """Trainable parameters, value head, optimizer and reference of one adapter, or of the whole model without LoRA."""

    parameters: dict[str, nn.Parameter]
    value_head: nn.Linear | None
    settings: EngineSettings
    reference: LanguageModel | str | None = None  # a frozen copy of the model, or the name of the frozen adapter
    version: int = 0  # number of weight changes, by updates and loads
    _weights: MasterWeights | None = field(default=None, repr=False)

    @property
    def weights(self) -> MasterWeights:
        """Master weights and optimizer, created on first use, since a policy that only samples needs none."""
        if self._weights is None:
            self._weights = MasterWeights(self.parameters, self.settings)
        return self._weights

    @property
    def steps(self) -> int:
        """optimizer steps taken"""
        return self._weights.steps if self._weights else 0

    def reset_training(self) -> None:
        """Drop the optimizer and the masters. Call it when the parameters are replaced."""
        self._weights = None

    def trained_tensors(self, masters: bool = True) -> dict[str, torch.Tensor]:
        """The float32 masters if they exist and `masters` is set, else the model's weights (possibly bfloat16)."""
        return dict(self._weights.master if self._weights and masters else self.parameters)


def update_digest(hasher: Any, member: str, name: str, tensor: torch.Tensor) -> None:
    """Add one trained tensor to a digest, as float32. All engines use this, so equal weights have equal digests."""
    hasher.update(f"{member} {name} {tuple(tensor.shape)}\n".encode())
    hasher.update(tensor.detach().cpu().float().contiguous().numpy().data)  # converted on the CPU: the GPU may be full


def make_value_head(width: int, device: torch.device) -> nn.Linear:
    """A value head initialized with zeros, so the first advantages are plain returns."""
    head = nn.Linear(width, 1, device=device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class LocalEngine:
    """One model, its tokenizer, its sampler, and its `members`: one AdapterState per adapter (only `default` without LoRA)."""

    def __init__(self, hf: Any, tokenizer: Any, settings: EngineSettings, seed: int):
        self.settings, self.seed, self.tokenizer = settings, seed, tokenizer
        self.codec = make_codec(tokenizer, hf.config)
        self.device = next(hf.parameters()).device
        tokens = settings.token_budget or DEFAULT_BUDGET[self.device.type]
        # Separate budgets: an update saves activations for the backward pass, so far fewer tokens fit.
        self.update_budget, self.scoring_budget = AdaptiveBudget(tokens, self.device), AdaptiveBudget(tokens, self.device)
        self._phase = ""
        if settings.gradient_checkpointing:
            hf.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.sampler: LocalSampler | None = None
        self.adapters = LoraAdapters(hf, settings, seed, self.weights_changed) if settings.lora_rank else None
        self.model = self.wrap_model(hf, packed=not settings.gradient_checkpointing)
        self.members: dict[str, AdapterState] = {}
        self._copies: dict[str, tuple[Any, LocalSampler]] = {}
        """by member: a copy of the model for sampling during updates"""
        self._digests: dict[tuple[str | None, bool], tuple[Any, str]] = {}
        self.member(MAIN)

    def wrap_model(self, hf: Any, packed: bool = True) -> LanguageModel:
        make = partial(LanguageModel, hf, packed)
        with fast_paths(self.settings.fast != "off"):
            return retry_on_oom(make, self.device, "the first forward pass of the model")

    def copy_frozen(self) -> Any:
        """A frozen copy of the model, to be used as reference."""
        make = partial(copy.deepcopy, self.model.hf)
        return retry_on_oom(make, self.device, "copying the model for reference").requires_grad_(False)

    def member(self, name: str) -> AdapterState:
        """The state of an adapter, created on first use."""
        if name in self.members:
            return self.members[name]
        if self.adapters is None and name != MAIN:
            raise TacitError(
                f"adapter {name!r} needs LoRA: this policy trains all parameters. Set --engine.lora-rank, e.g. 64."
            )
        if name.endswith(FROZEN_SUFFIX):
            raise TacitError(f"adapter name {name!r} is reserved: names ending in {FROZEN_SUFFIX!r} hold frozen references.")
        if self.adapters:
            self.adapters.add(name)
            parameters = self.adapters.parameters(name)
        else:
            parameters = dict(self.model.hf.named_parameters())
        head = make_value_head(self.model.width, self.device) if self.settings.value_head else None
        if head is not None:
            parameters |= {f"value_head.{n}": p for n, p in head.named_parameters()}
        self.members[name] = AdapterState(parameters, head, self.settings)
        return self.members[name]

    def remove_adapter(self, name: str) -> None:
        """Remove an adapter and its state. Views of it must not be used afterwards."""
        if self.adapters is None or name not in self.members or name == MAIN:
            raise TacitError(f"cannot remove adapter {name!r}: it does not exist, or is the policy's first adapter.")
        self.adapters.remove(name)
        del self.members[name]
        self._digests = {key: entry for key, entry in self._digests.items() if key[0] not in (None, name)}

    def activate(self, name: str | None) -> None:
        if self.adapters:
            self.adapters.activate(name)

    def enter_phase(self, phase: str) -> None:
        """On a nearly full GPU, empty torch's cache when the phase changes, or before an update if it is fragmented."""
        may_free = phase != self._phase or (phase == "update" and is_fragmented(self.device))
        if may_free and is_nearly_full(self.device):
            empty_cache(self.device)
        self._phase = phase

    def open_scheduler(self, name: str, sampling: Sampling, hidden: HiddenState | None) -> LocalScheduler:
        return self.get_sampler().open_scheduler(sampling, hidden, partial(self._begin_sampling, name))

    def sample(
        self, name: str, requests: Sequence[Request], sampling: Sampling, hidden: HiddenState | None
    ) -> list[Completion]:
        return self.get_sampler().sample(requests, sampling, hidden, partial(self._begin_sampling, name))

    def get_sampler(self) -> LocalSampler:
        if self.sampler is None:
            self.sampler = self._make_sampler(self.model.hf)
        return self.sampler

    def _make_sampler(self, hf: Any) -> LocalSampler:
        with fast_paths(self.settings.fast != "off"):
            return LocalSampler(hf, self.tokenizer, self.device, max_batch=self.settings.max_batch)

    def copy_sampler(self, name: str) -> LocalSampler:
        """A sampler with a copy of a member's trained weights, for use in another thread. Frozen weights are shared."""
        self.activate(name)
        hf = self.model.hf
        if name in self._copies:  # keep the caches and CUDA graphs
            copied, sampler = self._copies[name]
            with torch.no_grad():
                for source, target in zip(hf.parameters(), copied.parameters(), strict=True):
                    if source is not target:
                        target.copy_(source)
            sampler.weights_changed()
            return sampler
        trained = {id(p) for p in self.members[name].parameters.values()}
        shared = {id(p): p for p in hf.parameters() if id(p) not in trained}
        copied = retry_on_oom(partial(copy.deepcopy, hf, shared), self.device, "copying the model for sampling")
        self._copies[name] = copied, self._make_sampler(copied)
        return self._copies[name][1]

    def _begin_sampling(self, name: str) -> int:
        """Activate an adapter for sampling. Returns the version of its weights."""
        self.enter_phase("sampling")
        self.activate(name)
        return self.members[name].version

    def scorer(self, adapter: str | None, model: LanguageModel | None = None) -> ModelScorer:
        activate = (lambda: None) if model else (lambda: self.activate(adapter))
        return ModelScorer(model or self.model, self.codec, self.scoring_budget, activate)

    def make_updater(self, name: str) -> Updater:
        member = self.member(name)
        weights = retry_on_oom(lambda: member.weights, self.device, "allocating float32 master weights")
        return Updater(self.model, self.codec, weights, self.settings, self.update_budget, self.seed, member.value_head)

    def weights_changed(self, *names: str) -> None:
        """Call after changing these members' weights, or (without names) the active adapter: the sampler then copies them."""
        for name in names:
            self.members[name].version += 1
        if self.sampler is not None:
            self.sampler.weights_changed()

    def digest(self, name: str | None = None, masters: bool = True) -> str:
        """sha256 over the trained tensors of one member, or of all, as float32, in name order. Cached until a tensor
        changes."""
        tensors: list[tuple[str, str, torch.Tensor]] = []
        state: list[tuple[str, int, int]] = []
        for member_name, member in sorted(self.members.items()):
            if name not in (None, member_name):
                continue
            state.append((member_name, member.version, 0))
            for tensor_name, tensor in sorted(member.trained_tensors(masters).items()):
                tensors.append((member_name, tensor_name, tensor))
                state.append((tensor_name, tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version))
        cached = self._digests.get((name, masters))
        if cached is None or cached[0] != state:
            hasher = hashlib.sha256()
            for member_name, tensor_name, tensor in tensors:
                update_digest(hasher, member_name, tensor_name, tensor)
            cached = self._digests[name, masters] = state, hasher.hexdigest()
        return cached[1]


class PolicyBase(TextCodec, PolicyHooks):
    """The methods of a policy that need only its tokenizer and scorer; shared by the local, sharded and Tinker engines."""

    _scorer: Scorer

    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        return self._scorer.logprobs(prompts, completions, temperature)

    def distributions(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], top_k: int | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        return self._scorer.distributions(prompts, completions, top_k)
