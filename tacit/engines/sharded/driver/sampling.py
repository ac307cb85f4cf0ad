"""Who samples for the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from safetensors.torch import load as from_bytes

from tacit.core.protocols import Desk, Request, Sampling
from tacit.core.types import Completion
from tacit.engines.local.engine import LocalEngine
from tacit.engines.local.passes.models import LanguageModel
from tacit.engines.local.sampling.sampler import LocalSampler
from tacit.engines.local.settings import EngineSettings


class Samplers(Protocol):
    """Writes completions with the weights that the ranks have trained; every completion carries their version."""

    @property
    def written_tokens(self) -> int: ...

    def sample(self, name: str, requests: Sequence[Request], sampling: Sampling, layer: int | None) -> list[Completion]: ...

    def desk(self, name: str, sampling: Sampling, layer: int | None) -> Desk: ...


class Replica(LocalEngine):
    """The whole model in the driver's own process, which takes over the weights of the ranks whenever they have moved and
    somebody wants something written."""

    def __init__(
        self,
        hf: Any,
        tokenizer: Any,
        settings: EngineSettings,
        seed: int,
        newest: Callable[[str], int],
        fetch: Callable[[str], bytes],
        plays: bool = True,
    ):
        """`newest`: the version of a member's weights on the ranks; `fetch`: those weights; `plays`: False where servers do, so
        that what is here is only saved"""
        self._plays = plays
        super().__init__(hf, tokenizer, settings, seed)
        self._newest, self._fetch = newest, fetch

    def catch_up(self, name: str) -> None:
        """Have the weights that the ranks have."""
        member, newest = self.member(name), self._newest(name)
        if member.version == newest:
            return
        fetched = from_bytes(self._fetch(name))
        with torch.no_grad():
            for own, p in member.parameters.items():
                p.copy_(fetched[own])
        self.weights_changed()
        member.version = newest

    def wrapped(self, hf: Any, lean: bool = True) -> LanguageModel:
        # Many a CPU takes minutes for a few tokens in bfloat16: a copy that never computes is not tried out.
        return super().wrapped(hf, lean and self._plays)

    @property
    def written_tokens(self) -> int:
        return self.sampler.written_tokens if self.sampler else 0

    def for_requests(self) -> LocalSampler:
        """Whoever knows what can be asked of the model."""
        return self._sampling()

    def _play(self, name: str) -> int:
        self.catch_up(name)
        return super()._play(name)
