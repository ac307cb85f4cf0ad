"""Ranks as Ray actors: they compute what one process computes, and an error names a lost actor. Needs Ray."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_sharded import LR, a_batch

from tacit.core.errors import TacitError
from tacit.core.protocols import ModelSource
from tacit.engines import get_engine
from tacit.engines.sharded.policy import load_policy
from tacit.engines.sharded.settings import ShardedSettings
from tacit.testing.engines import Weighted, small_checkpoint

ray = pytest.importorskip("ray")


def test_ray_actors_match_one_process_and_lost_actors_are_named(tmp_path: Path) -> None:
    checkpoint, batch = small_checkpoint(tmp_path), a_batch()
    shared = {"device": "cpu", "threads": 1}
    engine = get_engine("local")
    one = engine.load(ModelSource(str(checkpoint), seed=3), engine.settings(**shared))
    settings = ShardedSettings(**shared, ranks=2, address="local", timeout_s=30.0)
    many = load_policy(ModelSource(str(checkpoint), seed=3), settings)
    try:
        assert many.digest() == one.digest()
        for policy in (one, many):
            policy.update(batch, [Weighted()], LR)
        rows = batch.prompts, batch.completions
        for ours, theirs in zip(many.logprobs(*rows), one.logprobs(*rows), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
        lost = many.engine.ranks.ranks[1].started
        lost.stop()
        with pytest.raises(TacitError, match=rf"rank 1 of 2 \({lost.name}\) was lost.*--resume"):
            many.update(batch, [Weighted()], LR)
        with pytest.raises(TacitError, match=r"ranks = 99, but the Ray cluster"):
            load_policy(ModelSource(str(checkpoint)), ShardedSettings(**shared, ranks=99, address="local"))
    finally:
        many.close()
        ray.shutdown()


def test_unreachable_ray_cluster_is_refused_with_the_remedy(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path)
    with pytest.raises(TacitError, match=r"no Ray cluster answers at 'auto'.*ray start --head"):
        load_policy(ModelSource(str(checkpoint)), ShardedSettings(device="cpu", ranks=2, address="auto"))
