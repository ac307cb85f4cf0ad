"""What every view of a sharded policy shares: the ranks, who samples for them, and how often each member's weights moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from itertools import chain
from typing import Any

import numpy as np

from tacit.core.errors import TacitError
from tacit.engines.local.learning.adapters import MAIN
from tacit.engines.local.passes.models import resolve_device
from tacit.engines.local.settings import EngineSettings
from tacit.engines.sharded.driver.group import RankGroup
from tacit.engines.sharded.driver.sampling import Replica, Samplers
from tacit.engines.sharded.driver.servers import Servers
from tacit.engines.sharded.driver.starting import start_servers
from tacit.engines.sharded.settings import ShardedSettings


class ShardedEngine:
    """The ranks, the samplers, and how often each member's weights have moved. Shared by every view of the policy."""

    def __init__(self, hf: Any, tokenizer: Any, checkpoint: str, settings: ShardedSettings, seed: int, ranks: RankGroup):
        self.ranks, self.settings = ranks, settings
        self.versions = {MAIN: 0}
        told = ranks.ask("open", checkpoint, settings, seed)[0]
        self.poolings: tuple[str, ...] = told["poolings"]
        alone = EngineSettings(**{f.name: getattr(settings, f.name) for f in fields(EngineSettings)})
        plays = replace(alone, value_head=False, gradient_checkpointing=False)
        newest = self.versions.__getitem__
        self.replica = Replica(hf, tokenizer, plays, seed, newest, self._fetch, plays=not settings.servers)
        self.device = resolve_device(settings)[0].type
        """of the ranks and the servers"""
        self.servers: Servers | None = None
        if settings.servers:
            self.servers = start_servers(checkpoint, settings, ranks, self.replica, newest, self._states)
        self.samplers: Samplers = self.servers or self.replica
        self.references: set[str] = set()
        """members that a frozen copy was made of"""
        self._digests: dict[tuple[str | None, bool], tuple[dict[str, int], str]] = {}

    def member(self, name: str) -> None:
        if name not in self.versions:
            self.replica.member(name)  # refuses what cannot be
            self.ranks.ask("member", name)
            self.versions[name] = 0

    def digest(self, name: str | None = None, masters: bool = True) -> str:
        known = self._digests.get((name, masters))
        if known is None or known[0] != self.versions:
            known = dict(self.versions), self.ranks.ask("digest", name, masters)[0]
            self._digests[name, masters] = known
        return known[1]

    def hidden_scan(
        self, name: str, prompts: Sequence[np.ndarray], layers: Sequence[int], poolings: Sequence[str]
    ) -> dict[tuple[int, str], np.ndarray]:
        states = {(i, p): np.zeros((len(prompts), self.replica.model.width), np.float32) for i in layers for p in poolings}
        for rows, found in joined(self.ranks.ask("hidden_scan", name, prompts, list(layers), list(poolings))):
            for which, states_RD in found.items():
                states[which][rows] = states_RD
        return states

    def held(self) -> AbstractContextManager[None]:
        if self.servers is None:
            raise TacitError("only servers can go on with weights that are learned from meanwhile: --engine.servers 1.")
        return self.servers.held(list(self.versions))

    def close(self) -> None:
        self.ranks.close()
        if self.servers is not None:
            self.servers.close()

    def _fetch(self, name: str) -> bytes:
        return self.ranks.ask("weights", name)[0]

    def _states(self, name: str, prompts: Sequence[np.ndarray], layer: int) -> np.ndarray:
        return self.hidden_scan(name, prompts, [layer], ["last"])[layer, "last"]


class ShardedScorer:
    """Scores text under one member, or under its reference."""

    def __init__(self, engine: ShardedEngine, name: str, reference: bool = False):
        self._engine, self._who = engine, (name, reference)

    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        found = dict(joined(self._engine.ranks.ask("logprobs", self._who, prompts, completions, temperature)))
        return [found.get(i, np.zeros(0, np.float32)) for i in range(len(prompts))]

    def distributions(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], top_k: int | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        vocabulary = self._engine.replica.model.vocabulary
        if top_k is not None and not 1 <= top_k <= vocabulary:
            raise TacitError(f"top_k = {top_k} must be between 1 and the vocabulary of {vocabulary}.")
        width = top_k or vocabulary
        nothing = (np.zeros((0, width), np.int64), np.zeros((0, width), np.float32))
        found = dict(joined(self._engine.ranks.ask("distributions", self._who, prompts, completions, top_k)))
        return [found.get(i, nothing) for i in range(len(prompts))]


def joined(answers: Iterable[list[Any]]) -> Iterable[Any]:
    """The answers of all ranks, each of which has some."""
    return chain.from_iterable(answers)
