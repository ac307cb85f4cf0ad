"""What every view of a sharded policy shares: the ranks, who samples for them, and how often each member's weights moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from tacit.core.errors import TacitError
from tacit.engines.local.learning.adapters import MAIN
from tacit.engines.local.passes.models import resolve_device, usable_cpus
from tacit.engines.local.settings import EngineSettings
from tacit.engines.sharded.driver.group import RankGroup
from tacit.engines.sharded.driver.launching import Launcher, ProcessLauncher
from tacit.engines.sharded.driver.sampling import Replica, Samplers
from tacit.engines.sharded.settings import ShardedSettings


def start_ranks(settings: ShardedSettings) -> RankGroup:
    """The processes, without a model yet."""
    device = resolve_device(settings)[0].type
    threads = settings.threads or max(1, usable_cpus() // settings.ranks)
    launcher: Launcher
    if settings.address:
        from tacit.engines.sharded.driver.ray_launching import RayLauncher

        launcher = RayLauncher(settings.address, settings.ranks, threads, device == "cuda")
    else:
        if device == "cuda" and settings.ranks > (here := torch.cuda.device_count()):
            raise TacitError(
                f"engine setting ranks = {settings.ranks}, but this machine has {here} GPU(s), and each rank needs one of its "
                f"own; use --engine.ranks {here}, a Ray cluster (--engine.address), or --engine.device cpu."
            )
        launcher = ProcessLauncher(threads)
    return RankGroup(launcher, settings.ranks, device, settings.start_timeout_s, settings.timeout_s)


class ShardedEngine:
    """The ranks, the samplers, and how often each member's weights have moved. Shared by every view of the policy."""

    def __init__(self, hf: Any, tokenizer: Any, checkpoint: str, settings: ShardedSettings, seed: int, ranks: RankGroup):
        self.ranks, self.settings = ranks, settings
        self.versions = {MAIN: 0}
        told = ranks.ask("open", checkpoint, settings, seed)[0]
        self.poolings: tuple[str, ...] = told["poolings"]
        alone = EngineSettings(**{f.name: getattr(settings, f.name) for f in fields(EngineSettings)})
        plays = replace(alone, value_head=False, gradient_checkpointing=False)
        self.replica = Replica(hf, tokenizer, plays, seed, self.versions.__getitem__, self._fetch)
        self.samplers: Samplers = self.replica
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

    def _fetch(self, name: str) -> bytes:
        return self.ranks.ask("weights", name)[0]


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
