"""One rank: what the driver can ask of it. Every rank is asked the same, and does its part."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tacit.core.batch import Batch
from tacit.core.errors import TacitError
from tacit.core.protocols import LossTerm
from tacit.engines.local.engine import DEFAULT_BUDGET, hash_into, zero_head
from tacit.engines.local.learning.adapters import FROZEN, MAIN, Adapters
from tacit.engines.local.memory import Budget
from tacit.engines.local.passes.codec import codec_for
from tacit.engines.local.passes.models import keep_order, resolve_device
from tacit.engines.local.passes.packing import buckets, input_lengths
from tacit.engines.local.passes.scoring import ModelScorer
from tacit.engines.sharded.ranks import saving
from tacit.engines.sharded.ranks.handing import HandsOver
from tacit.engines.sharded.ranks.learning import RigidBudget, ShardedLearning
from tacit.engines.sharded.ranks.room import check_room
from tacit.engines.sharded.ranks.shards import Sharded
from tacit.engines.sharded.ranks.turns import budget_for, turns
from tacit.engines.sharded.ranks.weights import ShardMember
from tacit.engines.sharded.settings import ShardedSettings

Answers = list[tuple[int, Any]]
"""(row, what was asked of it), of the rows that this rank computed"""


class Rank(HandsOver):
    def __init__(self, number: int, host: str):
        """`host`: the address of the machine it is on"""
        super().__init__()
        self.number, self.host = number, host
        self.sharded: Any = None
        self.adapters: Adapters | None = None
        self.members: dict[str, ShardMember] = {}

    def open_store(self) -> tuple[str, int] | None:
        """Where the ranks meet: at the first of them."""
        if self.number:
            return None
        self._store = dist.TCPStore(self.host, 0, is_master=True, wait_for_workers=False)
        return self.host, self._store.port

    def join(self, ranks: int, place: tuple[str, int], device: str, timeout_s: float) -> None:
        limit = timedelta(seconds=timeout_s)
        if self.number:
            self._store = dist.TCPStore(*place, is_master=False, timeout=limit)
        self.device = torch.device(device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", self.number % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=self._store, rank=self.number, world_size=ranks, timeout=limit)
        self.mesh = init_device_mesh(self.device.type, (ranks,))

    def open(self, checkpoint: str, settings: ShardedSettings, seed: int) -> dict[str, Any]:
        """Load a model, in the place of what was here. Returns what the driver wants to know of it."""
        self.members = {}  # what was here goes before something else comes
        self.sharded = self.adapters = None
        self.checkpoint, self.settings, self.seed = checkpoint, settings, seed
        self.dtype = resolve_device(settings)[1]
        check_room(checkpoint, settings, self.device, self.dtype)
        if settings.repeatable:
            keep_order(self.device)
        self.sharded = self._load()
        self.codec = codec_for(self.sharded.tokenizer, self.sharded.hf.config)
        self.token_budget = settings.token_budget or DEFAULT_BUDGET[self.device.type]
        self.learning_budget = Budget(self.token_budget, self.device)
        self.scoring_budget = (RigidBudget if self.sharded.by_layer else Budget)(self.token_budget, self.device)
        self.adapters = Adapters(self.sharded.hf, settings, seed, lambda: None) if settings.lora_rank else None
        self.member(MAIN)
        # Attention of one layer is read off its modules, outside of its own pass.
        poolings = [p for p in self._scorer(self.sharded).poolings if p != "attention" or not self.sharded.by_layer]
        return {"poolings": tuple(poolings), "by_layer": self.sharded.by_layer}

    def member(self, name: str) -> None:
        if name in self.members:
            return
        if self.adapters is not None:
            self.adapters.make(name)
        sharded = {} if self.adapters else self.sharded.parameters
        replicated = self.adapters.parameters(name) if self.adapters else {}
        head = zero_head(self.sharded.model.width, self.device) if self.settings.value_head else None
        if head is not None:
            replicated |= {f"value_head.{n}": p for n, p in head.named_parameters()}
        self.members[name] = ShardMember(sharded, replicated, head, self.settings, self.dtype)

    def logprobs(self, who: tuple[str, bool], prompts: Any, completions: Any, temperature: float) -> Answers:
        return self._score(who, prompts, completions, lambda scorer, own, theirs: scorer.logprobs(own, theirs, temperature))

    def distributions(self, who: tuple[str, bool], prompts: Any, completions: Any, top_k: int | None) -> Answers:
        return self._score(who, prompts, completions, lambda scorer, own, theirs: scorer.distributions(own, theirs, top_k))

    def hidden_scan(
        self, name: str, prompts: Sequence[np.ndarray], layers: Sequence[int], poolings: Sequence[str]
    ) -> list[tuple[np.ndarray, dict[tuple[int, str], np.ndarray]]]:
        """(rows, their states), of the rows that this rank computed"""
        nothing: list[np.ndarray] = [np.zeros(0, np.int64)] * len(prompts)
        lengths = input_lengths(prompts, nothing, self.codec.context_limit)
        parts = buckets(lengths, budget_for(self._ranks, lengths, self.token_budget))
        self._activate(name)
        scorer = self._scorer(self.sharded)

        def of(rows: np.ndarray) -> dict[tuple[int, str], np.ndarray]:
            return scorer.hidden_scan([prompts[i] for i in rows], layers, poolings)

        return self._passes(self.sharded, parts, of)

    def values(self, name: str, prompts: Sequence[np.ndarray]) -> Answers:
        head = self.members[name].value_head
        if head is None:
            raise TacitError("this policy has no value head; set the engine setting value_head.")

        def of(scorer: ModelScorer, own: Sequence[np.ndarray], _: Sequence[np.ndarray]) -> np.ndarray:
            return scorer.values(own, head)

        return self._score((name, False), prompts, [np.zeros(1, np.int64)] * len(prompts), of)

    def update(self, name: str, batch: Batch, losses: Sequence[LossTerm], lr: float) -> dict[str, float]:
        member = self.members[name]
        self._activate(name)
        budget = self.learning_budget
        learning = ShardedLearning(
            self.sharded, self.codec, member.weights, self.settings, budget, self.seed, member.value_head
        )
        learning.plan(batch, losses)
        metrics = learning.update(batch, losses, lr)
        return metrics | ({"token_budget": float(budget.now)} if budget.now < budget.chosen else {})

    def begin_stage(self, name: str) -> None:
        if self.members[name].steps:
            self.members[name].weights.forget_moments()

    def freeze_reference(self, name: str) -> None:
        member = self.members[name]
        if self.adapters is not None:
            self.adapters.copy(name, name + FROZEN)
            member.reference = name + FROZEN
            return
        frozen = member.reference if isinstance(member.reference, Sharded) else self.frozen_copy()
        with torch.no_grad():
            for own, there in self.sharded.parameters.items():
                frozen.parameters[own].copy_(there)
        member.reference = frozen

    def frozen_copy(self) -> Sharded:
        """The model as it began, in shards of its own, to take the weights of a reference."""
        frozen = self._load()
        for p in frozen.parameters.values():
            p.requires_grad_(False)
        return frozen

    def digest(self, name: str | None, masters: bool) -> str | None:
        """As the local engine's, of equal weights: however many ranks they are spread over. From the first rank."""
        total = hashlib.sha256()
        for own, member in sorted(self.members.items()):
            if name in (None, own):
                for tensor_name, whole in member.whole(masters, self.dtype):
                    if not self.number:
                        hash_into(total, own, tensor_name, whole)
        return None if self.number else total.hexdigest()

    def save(self, directory: Path, optimizer: bool) -> dict[str, dict[str, Any]]:
        saving.save(self, directory, optimizer)
        return {name: {"reference": m.reference is not None, "steps": m.steps} for name, m in self.members.items()}

    def load(self, directory: Path, members: dict[str, dict[str, Any]], optimizer: bool) -> None:
        saving.load(self, directory, members, optimizer)

    @property
    def _ranks(self) -> int:
        return dist.get_world_size()

    def _load(self) -> Sharded:
        return Sharded(self.checkpoint, self.settings, self.dtype, self.mesh, self.device)

    def _activate(self, name: str | None) -> None:
        if self.adapters is not None:
            self.adapters.activate(name)

    def _scorer(self, sharded: Sharded) -> ModelScorer:
        return ModelScorer(sharded.model, self.codec, self.scoring_budget)

    def _who(self, name: str, reference: bool) -> Sharded:
        """The model to ask, with the right adapter active."""
        frozen = self.members[name].reference if reference else name
        if isinstance(frozen, Sharded):
            return frozen
        self._activate(frozen)
        return self.sharded

    def _score(
        self,
        who: tuple[str, bool],
        prompts: Sequence[np.ndarray],
        completions: Sequence[np.ndarray],
        score: Callable[[ModelScorer, Sequence[np.ndarray], Sequence[np.ndarray]], Iterable[Any]],
    ) -> Answers:
        """Rows without completion tokens are left out."""
        sharded = self._who(*who)
        lengths = input_lengths(prompts, completions, self.codec.context_limit)
        rows = np.array([i for i, c in enumerate(completions) if len(c)], dtype=np.int64)
        parts = sharded.model.parts(prompts, completions, rows, budget_for(self._ranks, lengths[rows], self.token_budget))
        scorer = self._scorer(sharded)

        def of(part: np.ndarray) -> Iterable[Any]:
            return score(scorer, [prompts[i] for i in part], [completions[i] for i in part])

        return [pair for part, found in self._passes(sharded, parts, of) for pair in zip(part.tolist(), found, strict=True)]

    @torch.no_grad()
    def _passes(self, sharded: Sharded, parts: Sequence[np.ndarray], of: Callable[[np.ndarray], Any]) -> list[tuple[Any, Any]]:
        answers = []
        for part, counts, _ in turns(parts, self.number, self._ranks):
            found = sharded.run(partial(of, part))
            if counts:
                answers.append((part, found))
        sharded.let_go()
        return answers
