"""A desk whose requests are written by servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.core.types import Completion
from tacit.engines.local.sampling.drawing import check_sampling
from tacit.engines.local.sampling.sampler import LocalSampler
from tacit.engines.sharded.servers.orders import Delivery

if TYPE_CHECKING:
    from tacit.engines.sharded.driver.servers import Servers


class ServerDesk:
    """Requests of one member that are all drawn alike."""

    def __init__(self, servers: Servers, local: LocalSampler, name: str, sampling: Sampling, layer: int | None):
        """`local` knows what can be asked of the model, and what the text of tokens is"""
        check_sampling(sampling)
        self._servers, self._local, self._name, self._sampling, self._layer = servers, local, name, sampling, layer
        self._waiting: list[tuple[int, np.ndarray, int, int]] = []
        """ticket, prompt, seed, longest"""
        self._under_way: dict[int, tuple[int, np.ndarray]] = {}
        """the servers' ticket -> ours, and the prompt"""
        self._tickets = 0

    def submit(self, request: Request) -> int:
        ticket, self._tickets = self._tickets, self._tickets + 1
        job = self._local.job(ticket, request, self._sampling)
        self._waiting.append((ticket, job.prompt, job.seed, job.limit))
        return ticket

    def wait(self) -> list[tuple[int, Completion]]:
        if not self._waiting and not self._under_way:
            return []
        self._servers.catch_up(self._name)
        fresh, self._waiting = self._waiting, []
        given = self._servers.hand_in([(self._name, prompt, seed, most, self._sampling) for _, prompt, seed, most in fresh])
        self._under_way |= {theirs: (ours, prompt) for theirs, (ours, prompt, _, _) in zip(given, fresh, strict=True)}
        there = self._servers.fetch(list(self._under_way))
        mine = [self._under_way.pop(delivery.ticket) for delivery in there]
        hidden: Sequence[np.ndarray | None] = [None] * len(there)
        # While others are learned from the ranks move on, nobody knows when; credit asks for what is missing before an update.
        if self._layer is not None and not self._servers.is_held:
            hidden = list(self._servers.states(self._name, [prompt for _, prompt in mine], self._layer))
        return [
            (ticket, self._completion(delivery, state))
            for (ticket, _), delivery, state in zip(mine, there, hidden, strict=True)
        ]

    def close(self) -> None:
        if self._under_way:
            self._servers.forget(list(self._under_way))
        self._waiting, self._under_way = [], {}

    def _completion(self, delivery: Delivery, hidden: np.ndarray | None) -> Completion:
        tokens, logprobs = np.array(delivery.tokens, np.int64), np.array(delivery.logprobs, np.float32)
        if not np.isfinite(logprobs).all():
            raise TacitError(
                "the logits of a server are not finite numbers: the weights have diverged or do not fit their precision. "
                "Go back to an earlier checkpoint, and lower the learning rate."
            )
        return Completion(
            tokens=tokens,
            logprobs=logprobs,
            text=self._local.stops(self._sampling.stop).text(tokens),
            finish="stop" if delivery.stopped else "length",
            hidden=hidden,
            version=delivery.version,
        )
