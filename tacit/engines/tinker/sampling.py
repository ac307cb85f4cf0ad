"""Sampling at the service: every request is under way at once, and each is fetched when it is finished."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.core.types import Completion, Finish
from tacit.engines.local.passes.codec import TextCodec
from tacit.engines.tinker.connection import answer
from tacit.engines.tinker.data import whole_input
from tacit.engines.tinker.settings import TinkerSettings


class TinkerDesk:
    """Requests that are drawn alike, from the weights as they are when each is handed in."""

    def __init__(
        self, client: Callable[[], tuple[Any, int]], codec: TextCodec, sampling: Sampling, settings: TinkerSettings
    ) -> None:
        """`client` gives who samples from the newest weights, and their version."""
        check_sampling(sampling)
        self._client, self._codec, self._sampling, self._settings = client, codec, sampling, settings
        self._under_way: dict[Future[Any], tuple[int, int]] = {}
        self._tickets = 0

    def submit(self, request: Request) -> int:
        import tinker

        most = request.max_tokens or self._sampling.max_tokens
        if len(request.prompt) + 1 > self._codec.context_limit:
            raise TacitError(
                f"a prompt of {len(request.prompt)} tokens leaves no room in this model's {self._codec.context_limit}; "
                "shorten it."
            )
        client, version = self._client()
        params = tinker.SamplingParams(
            max_tokens=min(most, self._codec.context_limit - len(request.prompt)),
            seed=int(request.seed) % 2**31,
            stop=[*self._sampling.stop, self._codec.tokenizer.eos_token] if self._sampling.stop else None,
            temperature=self._sampling.temperature,
            top_k=self._sampling.top_k or -1,
            top_p=self._sampling.top_p,
        )
        future = client.sample(prompt=whole_input(request.prompt), num_samples=1, sampling_params=params)
        ticket, self._tickets = self._tickets, self._tickets + 1
        self._under_way[future] = (ticket, version)
        return ticket

    def wait(self) -> list[tuple[int, Completion]]:
        if not self._under_way:
            return []
        done, _ = wait(self._under_way, timeout=self._settings.timeout_s, return_when=FIRST_COMPLETED)
        if not done:
            raise TacitError(
                f"none of {len(self._under_way)} requests was answered within {self._settings.timeout_s:g} s; raise "
                "--engine.timeout-s, or look at the service's queue."
            )
        found = []
        for future in done:
            ticket, version = self._under_way.pop(future)
            response = answer(future, self._settings, "a sample")
            found.append((ticket, self._completion(response.sequences[0], version)))
        return sorted(found, key=lambda pair: pair[0])

    def close(self) -> None:
        for future in self._under_way:
            future.cancel()
        self._under_way.clear()

    def _completion(self, sequence: Any, version: int) -> Completion:
        tokens = np.asarray(sequence.tokens, np.int64)
        if sequence.logprobs is None:
            raise TacitError(
                "the service gave a sample without its log-probabilities; nothing can be learned from such samples."
            )
        finish: Finish = "stop" if str(getattr(sequence.stop_reason, "value", sequence.stop_reason)) == "stop" else "length"
        logprobs = np.asarray(sequence.logprobs, np.float32)
        return Completion(tokens, logprobs, self._codec.decode(tokens), finish, version=version)


def check_sampling(sampling: Sampling) -> None:
    if sampling.temperature < 0:
        raise TacitError(f"temperature = {sampling.temperature} must not be negative; 0 is greedy.")
