"""Sampling on vLLM servers: samples match the local sampler, use the ranks' current weights, and survive a lost server."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from on_servers import a_batch, needs_vllm, on_one, on_servers, process_of, requests, same, small_checkpoint

from tacit.core.errors import TacitError
from tacit.core.protocols import HIDDEN_STATES, SAMPLING, SCORING, Policy, Sampling
from tacit.core.types import HiddenState
from tacit.engines import get_engine
from tacit.engines.local.slots import EngineRequest
from tacit.engines.sharded.policy import ShardedPolicy
from tacit.testing.engines import LR, EngineConformance, Weighted

pytestmark = needs_vllm


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def opened(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ShardedPolicy, Path]]:
    policy, start = on_servers(model), tmp_path_factory.mktemp("start") / "policy"
    policy.save(start)
    yield policy, start
    policy.close()


@pytest.fixture()
def fresh(opened: tuple[ShardedPolicy, Path]) -> ShardedPolicy:
    """The policy with its initial weights, on the running server."""
    policy, start = opened
    policy.load(start)
    return policy


class TestSampling(EngineConformance):
    """The sampling part of the engine conformance tests. The sharded engine's own tests cover training."""

    engine = replace(get_engine("sharded"), capabilities=frozenset({SAMPLING, SCORING, HIDDEN_STATES}))

    @pytest.fixture(autouse=True)
    def one_for_all(self, fresh: ShardedPolicy) -> None:
        self.opened = fresh

    @contextmanager
    def policy(self, checkpoint: Path, **wished: Any) -> Iterator[Policy]:
        assert not wished
        yield self.opened

    @pytest.fixture(scope="class")
    def checkpoint(self, model: Path) -> Path:
        return model


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=20),
        Sampling(0.7, top_p=0.9, max_tokens=20),
        Sampling(1.2, top_k=5, max_tokens=20),
        Sampling(0.0, max_tokens=20),
        Sampling(max_tokens=30, stop=("e", " to")),
    ],
    ids=["plain", "top_p", "top_k", "greedy", "stops"],
)
def test_server_samples_match_the_local_sampler(fresh: ShardedPolicy, model: Path, sampling: Sampling) -> None:
    batch = requests()
    same(fresh.sample(batch, sampling), on_one(model).sample(batch, sampling))


def test_new_weights_reach_the_server_before_the_next_request(fresh: ShardedPolicy, model: Path) -> None:
    """A tied head and a prefix cache: without a reset, both would keep the old weights."""
    one, batch, sampling = on_one(model), requests(), Sampling(max_tokens=16)
    before = fresh.version
    for step in range(3):
        for policy in (one, fresh):
            policy.update(a_batch(batch), [Weighted()], 10 * LR)
        done = fresh.sample(batch, sampling)
        same(done, one.sample(batch, sampling))
        assert {c.version for c in done} == {before + step + 1} == {fresh.version}
    files = list(Path(fresh.engine.servers.transfer.directory.name).iterdir())  # type: ignore[union-attr]
    assert len(files) == 1, "old versions are cleared away"


def test_unfinished_requests_restart_with_new_weights(fresh: ShardedPolicy) -> None:
    batch, servers = requests(6), fresh.engine.servers
    assert servers is not None
    fresh.sample(batch[:1], Sampling(max_tokens=1))
    os.kill(process_of(fresh), signal.SIGSTOP)
    request_ids = servers.submit_all("default", [EngineRequest(0, r.prompt, r.seed, 60) for r in batch], Sampling())
    fresh.update(a_batch(batch), [Weighted()], 10 * LR)
    # The new weights are announced before the server resumes; otherwise it may finish a request with the old ones.
    with ThreadPoolExecutor(1) as beside:
        caught_up = beside.submit(servers.sync_weights, "default")
        time.sleep(3)
        os.kill(process_of(fresh), signal.SIGCONT)
        caught_up.result(timeout=120)
    found = {}
    while len(found) < len(batch):
        found |= {delivery.request_id: delivery for delivery in servers.fetch(request_ids)}
    for request_id, request in zip(request_ids, batch, strict=True):
        tokens, logprobs = np.array(found[request_id].tokens), np.array(found[request_id].logprobs)
        assert found[request_id].version == fresh.version
        np.testing.assert_allclose(logprobs, fresh.logprobs([request.prompt], [tokens])[0], atol=1e-4)


def test_pinned_weights_are_used_during_an_update(fresh: ShardedPolicy) -> None:
    batch, sampling = requests(), Sampling(max_tokens=16)
    before, version = fresh.sample(batch, sampling), fresh.version
    with fresh.pin_weights():
        fresh.update(a_batch(batch), [Weighted()], 10 * LR)
        meanwhile = fresh.sample(batch, sampling)
        same(meanwhile, before)
        assert {c.version for c in meanwhile} == {version} == {fresh.version - 1}
    after = fresh.sample(batch, sampling)
    assert {c.version for c in after} == {fresh.version}
    assert any(a.tokens.tolist() != b.tokens.tolist() for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("how", ["killed while it waits", "killed while it writes", "stopped"])
def test_lost_server_is_restarted_and_gives_the_same_samples(fresh: ShardedPolicy, how: str) -> None:
    servers = fresh.engine.servers
    assert servers is not None
    batch, sampling = requests(24), Sampling(max_tokens=90)
    fresh.update(a_batch(batch), [Weighted()], 10 * LR)  # so the weights differ from the checkpoint
    truth, restarted = fresh.sample(batch, sampling), servers.restarted
    process = process_of(fresh)
    if how == "killed while it waits":
        os.kill(process, signal.SIGKILL)
    elif how == "killed while it writes":
        threading.Timer(0.05, os.kill, (process, signal.SIGKILL)).start()
    else:
        os.kill(process, signal.SIGSTOP)
        servers.servers[0].timeout_s = 5.0
        # Reset the timeout: the first steps of the restarted server take longer.
        threading.Timer(9.0, setattr, (servers.servers[0], "timeout_s", 120.0)).start()
    limits = {"stopped": "--engine.timeout_s"}
    with pytest.warns(UserWarning, match=rf"server 0 \(process {process}\) of 1 was lost: .*{limits.get(how, 'SIGKILL')}"):
        again = fresh.sample(batch, sampling)
        if servers.restarted == restarted:  # the requests had finished before the kill
            time.sleep(0.2)
            again = fresh.sample(batch, sampling)
    same(again, truth)
    assert servers.restarted == restarted + 1 and {c.version for c in again} == {fresh.version}
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_server_with_stale_weights_is_refused(fresh: ShardedPolicy) -> None:
    batch = requests()
    servers = fresh.engine.servers
    assert servers is not None
    fresh.sample(batch[:1], Sampling(max_tokens=1))
    fresh.update(a_batch(batch), [Weighted()], 10 * LR)
    published = servers.transfer.publish("default", fresh.version)
    stale = replace(published, path="")  # as if the shared directory still showed the old files
    with pytest.raises(TacitError, match=r"server 0 \(process \d+\) has other weights than the ranks.*--engine.exchange"):
        servers.servers[0].load_weights(stale, servers.transfer.probes)
    servers.servers[0].load_weights(published, servers.transfer.probes)


def test_adapters_reach_the_server_by_name_and_version(model: Path) -> None:
    one, many = (opened(model, lora_rank=4) for opened in (on_one, on_servers))
    batch, sampling = requests(8), Sampling(max_tokens=16)
    try:
        for policy in (one, many):
            policy.adapter("other")
        same(many.sample(batch, sampling), one.sample(batch, sampling))
        for scale in (1.0, -2.0):
            for policy in (one, many):
                policy.update(a_batch(batch), [Weighted(scale=scale)], 10 * LR)
            same(many.sample(batch, sampling), one.sample(batch, sampling))
        for policy in (one, many):
            policy.adapter("other").update(a_batch(batch), [Weighted(scale=-1.0)], 10 * LR)
        same(many.adapter("other").sample(batch, sampling), one.adapter("other").sample(batch, sampling))
        same(many.sample(batch, sampling), one.sample(batch, sampling))
        assert many.version == 2 and many.adapter("other").version == 1
        server, transfer = many.engine.servers.servers[0], many.engine.servers.transfer
        nowhere = replace(transfer.newest["default"], version=3, path=str(model / "nowhere"))
        with pytest.raises(TacitError, match=r"server 0 .* failed in 'load': .*--engine.exchange"):
            server.load_weights(nowhere, transfer.probes)
        same(many.adapter("other").sample(batch, sampling), one.adapter("other").sample(batch, sampling))
        assert not many.engine.servers.restarted
    finally:
        many.close()


def test_hidden_states_are_not_sampled_while_weights_are_pinned(fresh: ShardedPolicy) -> None:
    """They could come from the weights before or after the update. Credit computes them before the next update."""
    batch, sampling = requests(4), Sampling(max_tokens=2)
    assert all(c.hidden is not None for c in fresh.sample(batch, sampling, hidden=HiddenState(1)))
    with fresh.pin_weights():
        assert all(c.hidden is None for c in fresh.sample(batch, sampling, hidden=HiddenState(1)))
    assert all(c.hidden is not None for c in fresh.sample(batch, sampling, hidden=HiddenState(1)))
