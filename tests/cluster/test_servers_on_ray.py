"""Ranks and a server as Ray actors: they compute what processes compute, and a dead server is restarted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from on_servers import needs_vllm, on_one, on_servers, small_checkpoint

from tacit.core.protocols import Request, Sampling

pytestmark = needs_vllm
ray = pytest.importorskip("ray", reason="Ray is not installed here; `make test-cluster` makes an environment that has it")


def test_ray_actors_sample_like_one_process_and_restart(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path)
    many, one = on_servers(checkpoint, address="local", ranks=1), on_one(checkpoint)
    requests = [Request(np.arange(3, 20 + i), seed=i) for i in range(6)]
    try:
        truth = one.sample(requests, Sampling(max_tokens=12))
        for kill in (False, True):
            if kill:
                many.engine.servers.servers[0].started.stop()
                with pytest.warns(UserWarning, match="server 0 .Ray actor .* was lost"):
                    done = many.sample(requests, Sampling(max_tokens=12))
            else:
                done = many.sample(requests, Sampling(max_tokens=12))
            assert [c.tokens.tolist() for c in done] == [c.tokens.tolist() for c in truth]
    finally:
        many.close()
        ray.shutdown()
