"""A rank process: it runs the driver's calls until the connection closes. All ranks get the same calls."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save as as_bytes
from torch.distributed.device_mesh import init_device_mesh

from tacit.core.credit import Batch
from tacit.core.errors import TacitError, describe_error
from tacit.core.protocols import LossTerm
from tacit.engines.local.checkpoint import MOMENTS
from tacit.engines.local.engine import DEFAULT_BUDGET, FROZEN_SUFFIX, MAIN, LoraAdapters, make_value_head, update_digest
from tacit.engines.local.memory import AdaptiveBudget, empty_cache, is_nearly_full
from tacit.engines.local.model import enable_determinism, resolve_device
from tacit.engines.local.packing import input_lengths, plan_padded_batches
from tacit.engines.local.scoring import ModelScorer
from tacit.engines.local.tokenizer import make_codec
from tacit.engines.sharded.messages import CONNECT_TIMEOUT_S, Channel, ConnectionLost, read_arguments, run_call, serialize
from tacit.engines.sharded.policy import check_room
from tacit.engines.sharded.rank_training import (
    FixedBudget,
    ShardedModel,
    ShardedUpdater,
    ShardMember,
    assign_micro_batches,
    tokens_per_micro_batch,
)
from tacit.engines.sharded.settings import ShardedSettings
from tacit.engines.sharded.shards import State, read_layout, read_shards, write_shards

RowResults = list[tuple[int, Any]]  # (row, result) of the rows that this rank computed


class Rank:
    def __init__(self, number: int, host: str):
        """`host`: address of this machine"""
        self.number, self.host = number, host
        self.sharded: Any = None
        self.adapters: LoraAdapters | None = None
        self.members: dict[str, ShardMember] = {}

    def open_store(self) -> tuple[str, int] | None:
        """Open the rendezvous store on the first rank. Returns its address; None on other ranks."""
        if self.number:
            return None
        self._store = dist.TCPStore(self.host, 0, is_master=True, wait_for_workers=False)
        return self.host, self._store.port

    def join(self, ranks: int, address: tuple[str, int], device: str, timeout_s: float) -> None:
        timeout = timedelta(seconds=timeout_s)
        if self.number:
            self._store = dist.TCPStore(*address, is_master=False, timeout=timeout)
        self.device = torch.device(device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", self.number % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=self._store, rank=self.number, world_size=ranks, timeout=timeout)
        self.mesh = init_device_mesh(self.device.type, (ranks,))

    def open(self, checkpoint: str, settings: ShardedSettings, seed: int) -> tuple[str, ...]:
        """Load a model, in place of the previous one. Returns its poolings."""
        self.members = {}  # free the previous model first
        self.sharded = self.adapters = None
        self.checkpoint, self.settings, self.seed = checkpoint, settings, seed
        self.dtype = resolve_device(settings)[1]
        check_room(checkpoint, settings, self.device, self.dtype)
        if settings.repeatable:
            enable_determinism(self.device)
        self.sharded = self._load()
        self.codec = make_codec(self.sharded.tokenizer, self.sharded.hf.config)
        self.token_budget = settings.token_budget or DEFAULT_BUDGET[self.device.type]
        self.update_budget = AdaptiveBudget(self.token_budget, self.device)
        self.scoring_budget = (FixedBudget if self.sharded.by_layer else AdaptiveBudget)(self.token_budget, self.device)
        self.adapters = LoraAdapters(self.sharded.hf, settings, seed, lambda: None) if settings.lora_rank else None
        self.member(MAIN)
        # Attention pooling uses a layer's modules outside its forward pass, so it needs whole weights.
        poolings = [p for p in self._scorer(self.sharded).poolings if p != "attention" or not self.sharded.by_layer]
        return tuple(poolings)

    def member(self, name: str) -> None:
        if name in self.members:
            return
        if self.adapters is not None:
            self.adapters.add(name)
        sharded = {} if self.adapters else self.sharded.parameters
        replicated = self.adapters.parameters(name) if self.adapters else {}
        head = make_value_head(self.sharded.model.width, self.device) if self.settings.value_head else None
        if head is not None:
            replicated |= {f"value_head.{n}": p for n, p in head.named_parameters()}
        self.members[name] = ShardMember(sharded, replicated, head, self.settings, self.dtype)

    def score(self, method: str, model: tuple[str, bool], prompts: Any, completions: Any, *rest: Any) -> RowResults:
        """Call a method of `ModelScorer`. `model`: (member, whether its reference). Skips rows without completion tokens."""
        name, is_reference = model
        weights = self.members[name].reference if is_reference else name
        sharded = weights if isinstance(weights, ShardedModel) else self.sharded
        if not isinstance(weights, ShardedModel):
            self._activate(weights)
        lengths = input_lengths(prompts, completions, self.codec.context_limit)
        rows = np.flatnonzero([len(completion) for completion in completions])
        max_tokens = tokens_per_micro_batch(dist.get_world_size(), lengths[rows], self.token_budget)
        parts = sharded.model.plan_micro_batches(prompts, completions, rows, max_tokens)
        compute = getattr(self._scorer(sharded), method)

        def score_rows(part: np.ndarray) -> Any:
            inputs = [[prompts[i] for i in part], [completions[i] for i in part]]
            return compute(*(inputs[:1] if method == "values" else inputs), *rest)

        passes = self._passes(sharded, parts, score_rows)
        return [pair for part, values in passes for pair in zip(part.tolist(), values, strict=True)]

    def hidden_scan(
        self, name: str, prompts: Sequence[np.ndarray], layers: Sequence[int], poolings: Sequence[str]
    ) -> list[tuple[np.ndarray, dict[tuple[int, str], np.ndarray]]]:
        empty: list[np.ndarray] = [np.zeros(0, np.int64)] * len(prompts)
        lengths = input_lengths(prompts, empty, self.codec.context_limit)
        parts = plan_padded_batches(lengths, tokens_per_micro_batch(dist.get_world_size(), lengths, self.token_budget))
        self._activate(name)
        scorer = self._scorer(self.sharded)
        return self._passes(self.sharded, parts, lambda rows: scorer.hidden_scan([prompts[i] for i in rows], layers, poolings))

    def values(self, name: str, prompts: Sequence[np.ndarray]) -> RowResults:
        head = self.members[name].value_head
        if head is None:
            raise TacitError("this policy has no value head; set the engine setting value_head.")
        return self.score("values", (name, False), prompts, [np.zeros(1, np.int64)] * len(prompts), head)

    def update(self, name: str, batch: Batch, losses: Sequence[LossTerm], lr: float | None) -> dict[str, float]:
        member = self.members[name]
        self._activate(name)
        budget = self.update_budget
        updater = ShardedUpdater(self.sharded, self.codec, member.weights, self.settings, budget, self.seed, member.value_head)
        updater.plan(batch, losses)
        metrics = updater.update(batch, losses, lr)
        return metrics | ({"token_budget": float(budget.current)} if budget.current < budget.limit else {})

    def begin_stage(self, name: str) -> None:
        if self.members[name].steps:
            self.members[name].weights.reset_optimizer()

    def freeze_reference(self, name: str) -> None:
        member = self.members[name]
        if self.adapters is not None:
            self.adapters.copy(name, name + FROZEN_SUFFIX)
            member.reference = name + FROZEN_SUFFIX
            return
        frozen = member.reference if isinstance(member.reference, ShardedModel) else self.copy_frozen()
        with torch.no_grad():
            for param, tensor in self.sharded.parameters.items():
                frozen.parameters[param].copy_(tensor)
        member.reference = frozen

    def copy_frozen(self) -> ShardedModel:
        """The initial model in separate shards, into which reference weights can be copied."""
        frozen = self._load()
        for p in frozen.parameters.values():
            p.requires_grad_(False)
        return frozen

    def digest(self, name: str | None, masters: bool) -> str | None:
        """The local engine's digest of the same weights, whatever the number of ranks. None except on the first rank."""
        hasher = hashlib.sha256()
        for member_name, member in sorted(self.members.items()):
            if name in (None, member_name):
                for param, tensor in member.gather(masters, self.dtype):
                    if not self.number:
                        update_digest(hasher, member_name, param, tensor)
        return None if self.number else hasher.hexdigest()

    def save(self, directory: Path, optimizer: bool) -> dict[str, dict[str, Any]]:
        state: State = {}
        for name, member in self.members.items():
            for param in member.names():
                tensor = member.tensor(param, masters=optimizer)
                rounded = not optimizer and param in member.sharded
                state[f"{name}/weight/{param}"] = tensor.to(self.dtype).float() if rounded else tensor
            if optimizer and member.steps:
                weights = member.weights
                for param, master in weights.master.items():
                    # A parameter that no loss has used yet (e.g. the value head) has no moments.
                    for moment, value in weights.optimizer.state.get(master, {}).items():
                        state[f"{name}/{moment}/{param}"] = value if moment == "step" else weights.as_dtensor(param, value)
            state |= {f"{name}/reference/{param}": t for param, t in self._reference(member).items()}
        write_shards(state, directory, self.number, dist.get_world_size())
        return {name: {"reference": m.reference is not None, "steps": m.steps} for name, m in self.members.items()}

    def load(self, directory: Path, members: dict[str, dict[str, Any]], optimizer: bool) -> None:
        saved = read_layout(directory)
        state: State = {}
        for name, entry in members.items():
            self.member(name)
            member = self.members[name]
            member.reset()
            if entry["reference"] and self.adapters is None:
                member.reference = self.copy_frozen()
            elif entry["reference"] and self.adapters is not None:
                member.reference = name + FROZEN_SUFFIX
                self.adapters.add(member.reference)
            state |= {f"{name}/reference/{param}": t for param, t in self._reference(member).items()}
            if optimizer and entry["steps"]:
                weights = member.weights
                weights.steps = entry["steps"]
                for param, master in weights.master.items():
                    if f"{name}/exp_avg/{param}" in saved:
                        moments = {moment: torch.zeros_like(master) for moment in MOMENTS[:2]}
                        state |= {f"{name}/{m}/{param}": weights.as_dtensor(param, value) for m, value in moments.items()}
                        step = torch.zeros((), dtype=torch.float32, device=master.device)
                        state[f"{name}/step/{param}"] = step
                        weights.optimizer.state[master] = {**moments, "step": step}
            state |= {f"{name}/weight/{param}": member.tensor(param) for param in member.names()}
        read_shards(state, directory, saved, self.number, dist.get_world_size())
        for name in members:
            if self.members[name].steps:
                self.members[name].weights.copy_masters_to_model()

    def _reference(self, member: ShardMember) -> State:
        if member.reference is None:
            return {}
        if isinstance(member.reference, ShardedModel):
            parameters = member.reference.parameters
        else:
            assert self.adapters is not None
            parameters = self.adapters.parameters(member.reference)
        return {param: p.detach() for param, p in parameters.items()}

    def _load(self) -> ShardedModel:
        return ShardedModel(self.checkpoint, self.settings, self.dtype, self.mesh, self.device)

    def _activate(self, name: str | None) -> None:
        if self.adapters is not None:
            self.adapters.activate(name)

    def _scorer(self, sharded: ShardedModel) -> ModelScorer:
        return ModelScorer(sharded.model, self.codec, self.scoring_budget)

    @torch.no_grad()
    def _passes(
        self, sharded: ShardedModel, parts: Sequence[np.ndarray], compute: Callable[[np.ndarray], Any]
    ) -> list[tuple[Any, Any]]:
        """(rows, results) of the micro-batches that are assigned to this rank"""
        results = []
        for part, counts, _ in assign_micro_batches(parts, self.number, dist.get_world_size()):
            values = sharded.run(partial(compute, part))
            if counts:
                results.append((part, values))
        sharded.reshard()
        return results

    # Weights for the driver and the servers.

    def weights(self, name: str) -> bytes | None:
        """A member's trained weights except the value head, gathered, in the compute dtype. None except on the first rank."""
        tensors = {}
        for param, tensor in self.members[name].gather(masters=False, dtype=self.dtype):
            if not self.number and not param.startswith("value_head."):
                tensors[param] = tensor.detach().to("cpu", copy=True).contiguous()  # a copy, since training continues
        return None if self.number else as_bytes(tensors)

    def write_weights(self, name: str, path: Path) -> str:
        """Write `weights` to a file for servers, atomically. Returns the error message, or empty."""
        weights, unfinished = self.weights(name), path.with_suffix(".unfinished")
        try:
            if weights is not None:
                unfinished.write_bytes(weights)
                unfinished.rename(path)
            return ""
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            return str(error)

    def leave_room(self) -> None:
        """Empty torch's cache on a nearly full GPU, for a server that shares it."""
        if is_nearly_full(self.device):
            empty_cache(self.device)


def serve(number: int, address: tuple[str, int], key: bytes) -> None:
    channel = Channel.connect(address, key, CONNECT_TIMEOUT_S)
    rank = Rank(number, channel.own_host)
    while True:
        try:
            method, arguments = channel.receive()
        except ConnectionLost:
            break  # the driver has closed the connection, or exited
        except Exception as error:  # for example, a loss from a module that cannot be imported here
            answer: Any = (False, (None, f"it cannot unpickle the call: {describe_error(error)}"))
        else:
            answer = run_call(getattr(rank, method), arguments)
        try:
            channel.send(serialize(answer))
        except ConnectionLost:
            break
    sys.stdout.flush()
    os._exit(0)  # without a collective shutdown, since other ranks may have exited


if __name__ == "__main__":
    serve(*read_arguments())
