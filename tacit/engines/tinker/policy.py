"""A policy whose adapters are at a service with the Tinker API."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from tacit.core.credit import Batch
from tacit.core.errors import NonFiniteLoss, TacitError, first_line
from tacit.core.files import read_json
from tacit.core.protocols import DURING_UPDATES, LossTerm, ModelSource, Request, Sampling, Scorer, run_requests
from tacit.core.seeds import derive
from tacit.core.trust import is_code_trusted
from tacit.core.types import Completion, Finish, HiddenState
from tacit.engines.local.checkpoint import cannot_write, check_members
from tacit.engines.local.engine import MAIN, PolicyBase
from tacit.engines.local.tokenizer import TextCodec
from tacit.engines.local.update import LossMetrics, make_view
from tacit.engines.tinker.service import (
    TinkerSettings,
    await_result,
    check_loss_is_not_rescaled,
    find_context_limit,
    gradient_norm,
    make_datum,
    model_input,
    new_adapter,
)


class TinkerScheduler:
    """Sends all requests to the service at once. Each is sampled from the weights at its submission."""

    def __init__(
        self, client: Callable[[], tuple[Any, int]], codec: TextCodec, sampling: Sampling, settings: TinkerSettings
    ) -> None:
        """`client()` returns (sampling client of the newest weights, their version)."""
        if sampling.temperature < 0:
            raise TacitError(f"temperature = {sampling.temperature} must not be negative; 0 is greedy.")
        self._client, self._codec, self._sampling, self._settings = client, codec, sampling, settings
        self._under_way: dict[Future[Any], tuple[int, int]] = {}
        self._submitted = 0

    def submit(self, request: Request) -> int:
        import tinker

        max_tokens = request.max_tokens or self._sampling.max_tokens
        if len(request.prompt) + 1 > self._codec.context_limit:
            raise TacitError(
                f"a prompt of {len(request.prompt)} tokens leaves no room for a completion in this model's context of "
                f"{self._codec.context_limit}; shorten it."
            )
        client, version = self._client()
        params = tinker.SamplingParams(
            max_tokens=min(max_tokens, self._codec.context_limit - len(request.prompt)),
            seed=int(request.seed) % 2**31,
            stop=[*self._sampling.stop, self._codec.tokenizer.eos_token] if self._sampling.stop else None,
            temperature=self._sampling.temperature,
            top_k=self._sampling.top_k or -1,
            top_p=self._sampling.top_p,
        )
        future = client.sample(prompt=model_input(request.prompt), num_samples=1, sampling_params=params)
        request_id, self._submitted = self._submitted, self._submitted + 1
        self._under_way[future] = (request_id, version)
        return request_id

    def wait(self) -> list[tuple[int, Completion]]:
        if not self._under_way:
            return []
        done, _ = wait(self._under_way, timeout=self._settings.timeout_s, return_when=FIRST_COMPLETED)
        if not done:
            raise TacitError(
                f"none of {len(self._under_way)} requests was answered within {self._settings.timeout_s:g} s; raise "
                "--engine.timeout-s, or check the service's queue."
            )
        results = []
        for future in done:
            request_id, version = self._under_way.pop(future)
            response = await_result(future, self._settings, "a sample")
            results.append((request_id, self._completion(response.sequences[0], version)))
        return sorted(results, key=lambda pair: pair[0])

    def close(self) -> None:
        for future in self._under_way:
            future.cancel()
        self._under_way.clear()

    def _completion(self, sequence: Any, version: int) -> Completion:
        tokens = np.asarray(sequence.tokens, np.int64)
        if sequence.logprobs is None:
            raise TacitError(
                "the service returned a sample without log-probabilities, which training needs; use another service or engine."
            )
        finish: Finish = "stop" if str(getattr(sequence.stop_reason, "value", sequence.stop_reason)) == "stop" else "length"
        logprobs = np.asarray(sequence.logprobs, np.float32)
        return Completion(tokens, logprobs, self._codec.decode(tokens), finish, version=version)


# An update at a service that does not have our losses.
#
#     1  forward             log π of every completion token, from the service
#     2  our losses, here    on a `TokenView` of the whole batch; g = ∂L / ∂log π, one number per token
#     3  forward_backward    Σ g · ∇log π, by `importance_sampling` with advantages −g
#     4  optim_step          AdamW there, with our settings
#
# By the chain rule ∇L = Σ (∂L / ∂log π) · ∇log π: exact for every loss that is a function of log-probabilities alone.

DESCRIPTIONS = {
    "values": "a value head",
    "entropy": "the entropy of the distribution",
    "teacher": "distributions under another prompt",
}


def check_temperature(temperature: float, what: str) -> None:
    if temperature != 1.0:
        raise TacitError(
            f"{what} at temperature {temperature:g}: the Tinker API computes log-probabilities at temperature 1 only; use "
            "--temperature 1, or --engine local."
        )


def gradient(
    batch: Batch, losses: Sequence[LossTerm], score: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], list[np.ndarray]]
) -> tuple[list[Any], dict[str, float]]:
    """(rows to send, metrics). The rows have the gradient of the losses with respect to every token's log-probability."""
    if missing := sorted(frozenset().union(*(loss.needs for loss in losses)) & DURING_UPDATES):
        names = " and ".join(DESCRIPTIONS[need] for need in missing)
        raise TacitError(
            f"this method's loss needs {names} ({', '.join(missing)}), which the Tinker API does not provide; use --engine "
            "local or sharded, or another method."
        )
    check_temperature(batch.temperature, "an update")
    rows = [i for i, completion in enumerate(batch.completions) if len(completion)]
    if not rows:
        return [], {"loss": 0.0, "tokens": 0.0, "rows": 0.0}
    logprobs = score([batch.prompts[r] for r in rows], [batch.completions[r] for r in rows])
    logprobs_T = torch.from_numpy(np.concatenate(logprobs)).requires_grad_(True)
    loss_metrics = LossMetrics(losses, batch.total_tokens)
    lengths_R = np.array(list(map(len, logprobs)))
    loss = loss_metrics.add(make_view(batch, rows, lengths_R, len(rows), logprobs_T), batch.sampled)
    if loss.requires_grad:
        loss.backward()
    grad_T = np.zeros(len(logprobs_T)) if logprobs_T.grad is None else logprobs_T.grad.numpy().astype(np.float64)
    metrics = loss_metrics.metrics(loss_metrics.read(torch.zeros(())))
    del metrics["grad_norm"]  # the norm over the weights is known only at the service
    if not (math.isfinite(metrics["loss"]) and np.isfinite(grad_T).all()):
        failure = NonFiniteLoss(
            f"the loss is {metrics['loss']}, or its gradient is not finite; nothing was sent and no weight has been changed. "
            "Lower the learning rate, or look for extreme advantages and log-probabilities in the batch."
        )
        failure.batch = batch
        raise failure
    gradients = np.split(grad_T, np.cumsum(lengths_R)[:-1])
    data = [
        make_datum(batch.prompts[r], batch.completions[r], logprobs=row_logprobs, advantages=-row_gradient)
        for r, row_logprobs, row_gradient in zip(rows, logprobs, gradients, strict=True)
    ]
    return data, {**metrics, "tokens": float(batch.total_tokens), "rows": float(len(rows))}


class TinkerScorer:
    """Log-probabilities from the trained weights, or from frozen ones if `reference`."""

    def __init__(self, client: Callable[[], Any], settings: TinkerSettings, reference: bool = False) -> None:
        self._client, self._settings, self._is_reference = client, settings, reference

    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        check_temperature(temperature, "scoring")
        rows = [r for r in range(len(prompts)) if len(completions[r])]
        scores: list[np.ndarray] = [np.zeros(0, np.float32)] * len(prompts)
        client: Any = self._client() if rows else None
        if rows and self._is_reference:
            futures = [client.compute_logprobs(model_input(np.concatenate([prompts[r], completions[r]]))) for r in rows]
            for r, future in zip(rows, futures, strict=True):
                scored = await_result(future, self._settings, "the reference's scoring")
                scores[r] = np.array(scored[len(prompts[r]) :], np.float32)
        elif rows:
            data = [make_datum(prompts[r], completions[r], weights=np.ones(len(completions[r]))) for r in rows]
            outputs = await_result(client.forward(data, "cross_entropy"), self._settings, "scoring").loss_fn_outputs
            for r, output in zip(rows, outputs, strict=True):
                shifted = np.asarray(output["logprobs"].data, np.float64)  # position i predicts token i + 1
                scores[r] = shifted[len(prompts[r]) - 1 :][: len(completions[r])].astype(np.float32)
        return scores

    def distributions(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], top_k: int | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        raise TacitError("the Tinker API has no full distributions; use --engine local.")


MANIFEST = "policy.json"
FORMAT = "tinker-1"
EPSILON = 1e-8  # AdamW's ε, torch's default; the API's default is smaller


@dataclass(eq=False)
class Member:
    client: Any
    lineage: str  # a hash of base, rank, seed and every update in order, which determine the weights
    version: int = 0
    sampler: Any = None  # sampling client of the weights of `sampled_version`
    sampled_version: int = -1
    reference: Any = None  # sampling client of the frozen weights; None is the base
    reference_path: str = ""


@dataclass(eq=False)
class Connection:
    """A base model at a service, and its adapters there."""

    service: Any
    base_model: str
    settings: TinkerSettings
    seed: int
    members: dict[str, Member] = field(default_factory=dict)
    base: Any = None  # sampling client of the base, created on first use
    saved: int = 0  # weights and states saved at the service

    def member(self, name: str) -> Member:
        if name not in self.members:
            seed = derive(self.seed, "adapter", name) % 2**31
            start = f"{self.base_model} {self.settings.lora_rank} {seed}"
            client = new_adapter(self.service, self.base_model, self.settings, seed)
            self.members[name] = Member(client, hashlib.sha256(start.encode()).hexdigest())
        return self.members[name]

    def saved_name(self, kind: str) -> str:
        self.saved += 1
        return f"tacit-{kind}-{self.saved:06d}"


def load_policy(model: ModelSource, settings: TinkerSettings, service: Any) -> TinkerPolicy:
    if settings.probe:
        check_loss_is_not_rescaled(service, model.name, settings)
    connection = Connection(service, model.name, settings, model.seed)
    client = connection.member(MAIN).client
    try:
        if settings.tokenizer:
            from transformers import AutoTokenizer

            tokenizer: Any = AutoTokenizer.from_pretrained(settings.tokenizer, trust_remote_code=is_code_trusted())
        else:
            tokenizer = client.get_tokenizer()
    except Exception as error:
        raise TacitError(
            f"cannot load the tokenizer of {model.name!r}: {first_line(error)} Give one with --engine.tokenizer DIRECTORY."
        ) from error
    return TinkerPolicy(connection, tokenizer, find_context_limit(service, model.name, tokenizer, settings))


class TinkerPolicy(PolicyBase):
    """One adapter. Views made by `adapter` share the base and the connection. The API has no hidden states, values, full
    distributions, or temperatures other than 1 in scoring and updates; these raise."""

    elsewhere = True
    repeatable = False

    def __init__(self, connection: Connection, tokenizer: Any, context_limit: int, name: str = MAIN) -> None:
        super().__init__(tokenizer, context_limit)
        self.connection, self.name = connection, name
        self.member = connection.member(name)
        self._scorer: Scorer = TinkerScorer(lambda: self.member.client, connection.settings)

    @property
    def version(self) -> int:
        return self.member.version

    @property
    def numbers(self) -> str:
        return f"rank {self.connection.settings.lora_rank} at a service"

    def open_scheduler(self, sampling: Sampling, hidden: HiddenState | None = None) -> TinkerScheduler:
        if hidden is not None:
            raise TacitError("the Tinker API has no hidden states; use --engine local, or a method without them.")
        return TinkerScheduler(self._current_sampler, self, sampling, self.connection.settings)

    def sample(self, requests: Sequence[Request], sampling: Sampling, hidden: HiddenState | None = None) -> list[Completion]:
        return run_requests(self.open_scheduler(sampling, hidden), requests)

    def _current_sampler(self) -> tuple[Any, int]:
        """(sampling client of the current weights, their version)"""
        member = self.member
        if member.sampled_version != member.version:
            member.sampler = self._freeze()[0]
            member.sampled_version = member.version
        return member.sampler, member.version

    def _freeze(self) -> tuple[Any, str]:
        """(sampling client of a frozen copy of the current weights, the service's path of the copy)"""
        settings, member = self.connection.settings, self.member
        name = self.connection.saved_name("sampler")
        path = await_result(member.client.save_weights_for_sampler(name), settings, "weights for sampling").path
        return self.connection.service.create_sampling_client(model_path=path), path

    def update(self, batch: Batch, losses: Sequence[LossTerm], lr: float) -> dict[str, float]:
        """One AdamW step at the service, on the gradient of our losses."""
        import tinker

        settings, member = self.connection.settings, self.member
        data, metrics = gradient(batch, losses, self._scorer.logprobs)
        if not data:
            return {**metrics, "grad_norm": 0.0}
        params = tinker.AdamParams(
            learning_rate=lr, beta1=settings.betas[0], beta2=settings.betas[1], eps=EPSILON,
            weight_decay=settings.weight_decay, grad_clip_norm=settings.clip_norm,
        )  # fmt: skip
        backward = member.client.forward_backward(data, "importance_sampling")
        step = member.client.optim_step(params)
        await_result(backward, settings, "the gradient of an update")
        norm = gradient_norm(await_result(step, settings, "the step of an update").metrics)
        member.version += 1
        # Add this update to the lineage.
        hasher = hashlib.sha256(
            f"{member.lineage} {params.learning_rate} {params.beta1} {params.beta2} {params.weight_decay}".encode()
        )
        for datum in data:
            for name in ("target_tokens", "advantages"):
                hasher.update(np.asarray(datum.loss_fn_inputs[name].data).tobytes())
        member.lineage = hasher.hexdigest()
        return metrics if norm is None else {**metrics, "grad_norm": norm}

    def reference(self) -> Scorer:
        return TinkerScorer(self._reference_client, self.connection.settings, reference=True)

    def freeze_reference(self) -> None:
        self.member.reference, self.member.reference_path = self._freeze()

    def _reference_client(self) -> Any:
        """The scoring client of the reference: the frozen weights, or the base."""
        if self.member.reference is not None:
            return self.member.reference
        connection = self.connection
        if connection.base is None:
            connection.base = connection.service.create_sampling_client(base_model=connection.base_model)
        return connection.base

    def begin_stage(self) -> None:
        """Load the weights into a new adapter, which resets the optimizer."""
        member, settings = self.member, self.connection.settings
        if not member.version:
            return
        saving = member.client.save_state(self.connection.saved_name("stage"))
        path = await_result(saving, settings, "a state to begin with").path
        client = new_adapter(self.connection.service, self.connection.base_model, settings, seed=0)
        await_result(client.load_state(path), settings, "a state to begin with")
        member.client = client

    def adapter(self, name: str) -> TinkerPolicy:
        return self if name == self.name else TinkerPolicy(self.connection, self.tokenizer, self.context_limit, name)

    def check_layer(self, layer: int) -> NoReturn:
        raise TacitError(f"layer {layer}: the Tinker API gives no hidden states; use --engine local.")

    def hidden_states(self, prompts: Sequence[np.ndarray], layer: int, pooling: str = "last") -> np.ndarray:
        self.check_layer(layer)

    def values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        raise TacitError("the Tinker API has no value head; use --engine local, or a method without a critic.")

    def digest(self) -> str:
        """A hash of all updates since the base, in order, because the weights are not here."""
        members = self.connection.members if self.name == MAIN else {self.name: self.member}
        return hashlib.sha256("".join(f"{n} {m.lineage}\n" for n, m in sorted(members.items())).encode()).hexdigest()

    def save(self, directory: Path, optimizer: bool = True) -> None:
        """Save the state at the service; the directory gets a manifest with its paths there."""
        connection, members = self.connection, {}
        for name, member in connection.members.items():
            future = member.client.save_state(connection.saved_name("state"))
            path = await_result(future, connection.settings, f"saving {name}").path
            members[name] = {
                "path": path, "lineage": member.lineage, "version": member.version, "reference": member.reference_path,
            }  # fmt: skip
        manifest = {"format": FORMAT, "base_model": connection.base_model, "lora_rank": connection.settings.lora_rank,
                    "optimizer": optimizer, "digest": self.digest(), "members": members}  # fmt: skip
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            (Path(directory) / MANIFEST).write_text(json.dumps(manifest, indent=1))
        except OSError as error:
            raise cannot_write(directory, error) from error

    def load(self, directory: Path) -> None:
        connection, file = self.connection, Path(directory) / MANIFEST
        try:
            manifest = read_json(file)
            saved = (manifest["format"], manifest["base_model"], manifest["lora_rank"])
            members = manifest["members"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TacitError(f"cannot read checkpoint file {file}: {error}; use an earlier checkpoint.") from error
        expected = (FORMAT, connection.base_model, connection.settings.lora_rank)
        if saved != expected:
            raise TacitError(f"checkpoint {directory} is {saved} (format, model, rank), but this policy is {expected}.")
        check_members(Path(directory), members, connection.members)
        for name, entry in members.items():
            member = connection.member(name)
            load = member.client.load_state_with_optimizer if manifest["optimizer"] else member.client.load_state
            await_result(load(entry["path"]), connection.settings, f"loading {entry['path']}")
            member.lineage, member.version, member.sampled_version = entry["lineage"], entry["version"], -1
            member.reference_path, member.reference = entry["reference"], None
            if entry["reference"]:
                member.reference = connection.service.create_sampling_client(model_path=entry["reference"])
