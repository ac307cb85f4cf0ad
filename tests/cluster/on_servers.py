"""Shared by the tests on servers: a skip mark without vLLM, policies, requests and batches."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.core.credit import Batch
from tacit.core.protocols import ModelSource, Request
from tacit.engines import get_engine
from tacit.engines.models.tiny import TinySettings, tiny_checkpoint
from tacit.engines.sharded.policy import ShardedPolicy, load_policy
from tacit.engines.sharded.settings import ShardedSettings

needs_vllm = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not installed here; `make test-cluster` makes an environment that has it"
)
SMALL = TinySettings(vocab=512, hidden=64, layers=2, heads=2, kv_heads=1, intermediate=64, context=256)
"""vLLM's attention on CPUs needs a head size of at least 32"""
ALONE = {"device": "cpu", "threads": 1}


def small_checkpoint(place: Path) -> Path:
    """A model of a few thousand weights, drawn at random, with a tied head."""
    texts = [f"go to drawer {i} and take plate {i + 1} from shelf {i % 7}" for i in range(60)]
    return Path(shutil.copytree(tiny_checkpoint(texts, SMALL, seed=0), place / "model"))


def on_servers(checkpoint: Path, **wished: Any) -> ShardedPolicy:
    settings = {**ALONE, "ranks": 2, "servers": 1, "timeout_s": 120.0, "max_batch": 32, **wished}
    return load_policy(ModelSource(str(checkpoint), seed=3), ShardedSettings(**settings))


def on_one(checkpoint: Path, **wished: Any) -> Any:
    engine = get_engine("local")
    return engine.load(ModelSource(str(checkpoint), seed=3), engine.settings(**ALONE, **wished))


def process_of(policy: ShardedPolicy, server: int = 0) -> int:
    """The process id of a server."""
    assert policy.engine.servers is not None
    return int(str(policy.engine.servers.servers[server]).rpartition(" ")[2].rstrip(")"))


def requests(count: int = 12, seed: int = 0) -> list[Request]:
    draw = np.random.default_rng(seed)
    return [Request(draw.integers(2, 200, size=draw.integers(1, 150)), seed=int(draw.integers(1 << 62))) for _ in range(count)]


def a_batch(requests: list[Request]) -> Batch:
    draw = np.random.default_rng(1)
    completions = [draw.integers(2, 200, size=draw.integers(1, 12)) for _ in requests]
    weights = [draw.normal(size=len(c)) for c in completions]
    batch = Batch.imitation([r.prompt for r in requests], completions)
    return replace(batch, advantages=weights, sampled=True, behavior=[0 * w - 5.0 for w in weights])


def same(ours: Any, theirs: Any) -> None:
    assert [c.tokens.tolist() for c in ours] == [c.tokens.tolist() for c in theirs]
    assert [(c.text, c.finish) for c in ours] == [(c.text, c.finish) for c in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.logprobs, other.logprobs, atol=1e-4)
