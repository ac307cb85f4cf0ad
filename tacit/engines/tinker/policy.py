"""A policy whose adapters live at a service that speaks the Tinker API."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tacit.core.batch import Batch
from tacit.core.engine import ModelSource
from tacit.core.errors import TacitError
from tacit.core.protocols import LossTerm, Request, Sampling, Scorer, sample_at
from tacit.core.seeds import derive
from tacit.core.types import Completion
from tacit.engines.local.learning.adapters import MAIN
from tacit.engines.local.learning.saving import check_members
from tacit.engines.local.passes.codec import TextCodec
from tacit.engines.local.speaking import Speaking
from tacit.engines.tinker.connection import answer, check_proportions, context_limit, gradient_norm, new_adapter
from tacit.engines.tinker.learning import gradient
from tacit.engines.tinker.sampling import TinkerDesk
from tacit.engines.tinker.scoring import TinkerReference, TinkerScorer
from tacit.engines.tinker.settings import TinkerSettings

MANIFEST = "policy.json"
FORMAT = "tinker-1"
EPSILON = 1e-8
"""of AdamW, as torch has it; the API's own is smaller"""


@dataclass(eq=False)
class Member:
    """One adapter at the service."""

    client: Any
    lineage: str
    """a hash of what its weights come from: base, rank, seed, and every update in order"""
    version: int = 0
    sampler: Any = None
    """from the weights of `sampled_version`"""
    sampled_version: int = -1
    reference: Any = None
    """a sampler from the frozen weights; None is the base"""
    reference_path: str = ""


@dataclass(eq=False)
class Connection:
    """A base model at a service, and the adapters that are trained there."""

    service: Any
    base_model: str
    settings: TinkerSettings
    seed: int
    members: dict[str, Member] = field(default_factory=dict)
    base: Any = None
    """a sampler from the base alone, made when it is asked for"""
    names: int = 0

    def member(self, name: str) -> Member:
        if name not in self.members:
            seed = derive(self.seed, "adapter", name) % 2**31
            begun = f"{self.base_model} {self.settings.lora_rank} {seed}"
            client = new_adapter(self.service, self.base_model, self.settings, seed)
            self.members[name] = Member(client, hashlib.sha256(begun.encode()).hexdigest())
        return self.members[name]

    def saved_name(self, kind: str) -> str:
        self.names += 1
        return f"tacit-{kind}-{self.names:06d}"


def load_policy(model: ModelSource, settings: TinkerSettings, service: Any) -> TinkerPolicy:
    if settings.probe:
        check_proportions(service, model.name, settings)
    connection = Connection(service, model.name, settings, model.seed)
    client = connection.member(MAIN).client
    try:
        tokenizer = _tokenizer(settings.tokenizer) if settings.tokenizer else client.get_tokenizer()
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TacitError(
            f"the tokenizer of {model.name!r} cannot be had here: {reason} Give one with --engine.tokenizer DIRECTORY."
        ) from error
    limit = context_limit(service, model.name, tokenizer, settings)
    return TinkerPolicy(connection, TextCodec(tokenizer, limit))


def _tokenizer(source: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(source)


class TinkerPolicy(Speaking):
    """One adapter. Views made by `adapter` share the base and the connection; `save` and `load` take all of them.

    What the API cannot do is refused: hidden states, values, whole distributions, temperatures other than 1 outside of
    sampling.
    """

    elsewhere = True
    """it works on other machines: while it does, there is time for something else here"""

    def __init__(self, connection: Connection, codec: TextCodec, name: str = MAIN) -> None:
        self.connection, self.codec, self.name = connection, codec, name
        self._member = connection.member(name)
        self._scorer: Scorer = TinkerScorer(lambda: self._member.client, connection.settings)

    @property
    def version(self) -> int:
        return self._member.version

    @property
    def numbers(self) -> str:
        return f"rank {self.connection.settings.lora_rank} at a service"

    def desk(self, sampling: Sampling, layer: int | None = None) -> TinkerDesk:
        if layer is not None:
            raise TacitError("hidden states cannot be had of the Tinker API; use --engine local, or a method without them.")
        return TinkerDesk(self._newest, self.codec, sampling, self.connection.settings)

    def sample(self, requests: Sequence[Request], sampling: Sampling, layer: int | None = None) -> list[Completion]:
        return sample_at(self.desk(sampling, layer), requests)

    def _newest(self) -> tuple[Any, int]:
        """Who samples from the weights as they are now."""
        member = self._member
        if member.sampled_version != member.version:
            member.sampler = self._frozen()[0]
            member.sampled_version = member.version
        return member.sampler, member.version

    def _frozen(self) -> tuple[Any, str]:
        """A sampler from the weights of this moment, and where they are kept."""
        settings, member = self.connection.settings, self._member
        name = self.connection.saved_name("sampler")
        path = answer(member.client.save_weights_for_sampler(name), settings, "weights for sampling").path
        return self.connection.service.create_sampling_client(model_path=path), path

    def update(self, batch: Batch, losses: Sequence[LossTerm], lr: float) -> dict[str, float]:
        """One AdamW step at the service on the gradient of our own losses (learning.py)."""
        import tinker

        settings, member = self.connection.settings, self._member
        data, metrics = gradient(batch, losses, self._scorer.logprobs)
        if not data:
            return {**metrics, "grad_norm": 0.0}
        params = tinker.AdamParams(
            learning_rate=lr, beta1=settings.betas[0], beta2=settings.betas[1], eps=EPSILON,
            weight_decay=settings.weight_decay, grad_clip_norm=settings.clip_norm,
        )  # fmt: skip
        sent = member.client.forward_backward(data, "importance_sampling")
        stepped = member.client.optim_step(params)
        answer(sent, settings, "the gradient of an update")
        norm = gradient_norm(answer(stepped, settings, "the step of an update").metrics)
        member.version += 1
        member.lineage = _after(member.lineage, data, params)
        return metrics if norm is None else {**metrics, "grad_norm": norm}

    def reference(self) -> Scorer:
        return TinkerReference(self._reference_client, self.connection.settings)

    def freeze_reference(self) -> None:
        self._member.reference, self._member.reference_path = self._frozen()

    def _reference_client(self) -> Any:
        """Who scores as the reference: the frozen weights, or the base alone."""
        if self._member.reference is not None:
            return self._member.reference
        connection = self.connection
        if connection.base is None:
            connection.base = connection.service.create_sampling_client(base_model=connection.base_model)
        return connection.base

    def begin_stage(self) -> None:
        """Another adapter takes over the weights, and none of what the optimiser remembers."""
        member, settings = self._member, self.connection.settings
        if not member.version:
            return
        path = answer(member.client.save_state(self.connection.saved_name("stage")), settings, "a state to begin with").path
        fresh = new_adapter(self.connection.service, self.connection.base_model, settings, seed=0)
        answer(fresh.load_state(path), settings, "a state to begin with")
        member.client = fresh

    def adapter(self, name: str) -> TinkerPolicy:
        return self if name == self.name else TinkerPolicy(self.connection, self.codec, name)

    def check_layer(self, layer: int) -> None:
        raise TacitError(f"layer {layer}: hidden states cannot be had of the Tinker API; use --engine local.")

    def hidden_states(self, prompts: Sequence[np.ndarray], layer: int, pooling: str = "last") -> np.ndarray:
        raise TacitError(f"layer {layer}: hidden states cannot be had of the Tinker API; use --engine local.")

    def values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        raise TacitError("the Tinker API has no value head; use --engine local, or a method without a critic.")

    def digest(self) -> str:
        """The weights are not here. This is a hash of what was done to them, from the base on: equal where the same updates
        were made in the same order, which gives equal weights as far as the service itself repeats."""
        whole = self.connection.members if self.name == MAIN else {self.name: self._member}
        return hashlib.sha256("".join(f"{n} {m.lineage}\n" for n, m in sorted(whole.items())).encode()).hexdigest()

    def save(self, directory: Path, optimizer: bool = True) -> None:
        """The state stays at the service, which names it; the directory has the names."""
        connection, members = self.connection, {}
        for name, member in connection.members.items():
            future = member.client.save_state(connection.saved_name("state"))
            path = answer(future, connection.settings, f"saving {name}").path
            members[name] = {
                "path": path, "lineage": member.lineage, "version": member.version, "reference": member.reference_path,
            }  # fmt: skip
        manifest = {"format": FORMAT, "base_model": connection.base_model, "lora_rank": connection.settings.lora_rank,
                    "optimizer": optimizer, "digest": self.digest(), "members": members}  # fmt: skip
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            (Path(directory) / MANIFEST).write_text(json.dumps(manifest, indent=1))
        except OSError as error:
            raise TacitError(f"cannot write the checkpoint {directory}: {error}. Earlier checkpoints are untouched.") from error

    def load(self, directory: Path) -> None:
        connection, file = self.connection, Path(directory) / MANIFEST
        try:
            manifest = json.loads(file.read_text())
            found = (manifest["format"], manifest["base_model"], manifest["lora_rank"])
            members = manifest["members"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TacitError(f"cannot read checkpoint file {file}: {error}; use an earlier checkpoint.") from error
        own = (FORMAT, connection.base_model, connection.settings.lora_rank)
        if found != own:
            raise TacitError(f"checkpoint {directory} is {found} (format, model, rank), and this policy {own}.")
        check_members(Path(directory), members, connection.members)
        for name, saved in members.items():
            member = connection.member(name)
            load = member.client.load_state_with_optimizer if manifest["optimizer"] else member.client.load_state
            answer(load(saved["path"]), connection.settings, f"loading {saved['path']}")
            member.lineage, member.version, member.sampled_version = saved["lineage"], saved["version"], -1
            member.reference_path, member.reference = saved["reference"], None
            if saved["reference"]:
                member.reference = connection.service.create_sampling_client(model_path=saved["reference"])


def _after(lineage: str, data: Sequence[Any], params: Any) -> str:
    """The lineage one update later."""
    total = hashlib.sha256(f"{lineage} {params.learning_rate} {params.beta1} {params.beta2} {params.weight_decay}".encode())
    for datum in data:
        for name in ("target_tokens", "advantages"):
            total.update(np.asarray(datum.loss_fn_inputs[name].data).tobytes())
    return total.hexdigest()
