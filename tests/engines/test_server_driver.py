"""The driver side of sampling servers, without vLLM: the servers sample with the local engine instead."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from forked_ranks import forked_ranks

from tacit.core.credit import Batch
from tacit.core.protocols import ModelSource, Request, Sampling
from tacit.engines.sharded.policy import load_policy
from tacit.engines.sharded.settings import ShardedSettings
from tacit.testing.engines import Weighted, small_checkpoint

BACKEND = """
import runpy, sys, types
import numpy as np, torch
from safetensors.torch import load_file

class VllmServer:
    def __init__(self, options):
        from tacit.engines.local.policy import load_policy
        from tacit.engines.local.settings import EngineSettings
        self.policy = load_policy(options.checkpoint, EngineSettings(device="cpu", threads=1))
        self.rows, self.version = {}, 0

    @property
    def busy(self):
        return bool(self.rows)

    def add(self, orders):
        self.rows |= {order.request_id: order for order in orders}

    def cancel(self, request_ids):
        for request_id in request_ids:
            self.rows.pop(request_id, None)

    def load(self, member, version, path):
        found = load_file(path)
        with torch.no_grad():
            for name, p in self.policy.engine.model.hf.named_parameters():
                p.copy_(found.get(name, p))
        self.policy.engine.weights_changed("default")
        self.version = version

    def step(self):
        from tacit.core.protocols import Request
        from tacit.engines.sharded.messages import SampleResult
        if not self.rows:
            return []
        order = self.rows.pop(next(iter(self.rows)))
        request = Request(np.array(order.prompt), order.seed, order.max_tokens)
        done = self.policy.sample([request], order.sampling)[0]
        drawn = tuple(done.tokens.tolist()), tuple(done.logprobs.tolist()), done.finish == "stop"
        return [SampleResult(order.request_id, *drawn, self.version)]

backend = types.ModuleType("tacit.engines.sharded.vllm_backend")
backend.VllmServer = VllmServer
sys.modules[backend.__name__] = backend
runpy.run_module(sys.argv[2], run_name="__main__")
"""


@pytest.mark.slow
def test_servers_get_new_weights_and_are_restarted_when_killed(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(BACKEND)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/backend.py "$@"\n')
    python.chmod(0o755)
    settings = ShardedSettings(device="cpu", threads=1, servers=2, server_python=str(python), exchange=str(tmp_path))
    with forked_ranks():
        policy = load_policy(ModelSource(str(small_checkpoint(tmp_path))), settings)
    draw, sampling = np.random.default_rng(0), Sampling(max_tokens=6)
    requests = [Request(draw.integers(2, 280, size=9), seed=i) for i in range(8)]
    try:
        before = policy.sample(requests, sampling)
        assert {done.version for done in before} == {0}
        prompts = [request.prompt for request in requests]
        policy.update(Batch.imitation(prompts, [done.tokens for done in before]), [Weighted()], 1e-2)
        after = policy.sample(requests, sampling)
        assert {done.version for done in after} == {1}
        for done, logprobs in zip(after, policy.logprobs(prompts, [done.tokens for done in after]), strict=True):
            np.testing.assert_allclose(done.logprobs, logprobs, atol=1e-4)
        servers = policy.engine.servers
        assert servers is not None
        os.kill(int(servers.servers[0].started.name.split()[-1]), signal.SIGKILL)
        with pytest.warns(UserWarning, match=r"server 0 \(process \d+\) of 2 was lost: killed by SIGKILL"):
            again = policy.sample(requests, sampling)
        assert servers.restarted == 1 and [d.tokens.tolist() for d in again] == [d.tokens.tolist() for d in after]
    finally:
        policy.close()
