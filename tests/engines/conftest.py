"""Fixtures built once per session: a tiny policy of the local engine with its own cache, and a byte tokenizer."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import numpy as np
import pytest

SMALL = {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate": 64, "context": 256}


@pytest.fixture(scope="session")
def texts() -> list[str]:
    draw = random.Random(0)
    n = draw.randint
    return [f"numbers: {n(1, 99)} {n(1, 99)} | target: {n(10, 999)}\nop(*, {n(1, 9)}, {n(10, 99)})" for _ in range(200)]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def nondeterministic():
    """A `repeatable` policy on a GPU switches torch to deterministic algorithms for the whole process."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def make_policy(texts: list[str], own_cache: None) -> Callable:
    """make_policy(seed=0, context=256, **engine settings) -> a fresh LocalPolicy"""
    from tacit.engines.local.policy import load_policy
    from tacit.engines.local.settings import EngineSettings
    from tacit.engines.models.tiny import TinySettings

    def make(seed: int = 0, context: int = SMALL["context"], **settings):
        settings = {"device": "cpu", "threads": 1, **settings}
        return load_policy("tiny", EngineSettings(**settings), seed, texts, TinySettings(**{**SMALL, "context": context}))

    return make


@pytest.fixture(scope="session")
def rows() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Ragged prompts and completions, one completion of a single token and one empty."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 250, size=n) for n in (5, 31, 12, 12, 3, 20, 1, 9)]
    completions = [rng.integers(2, 250, size=n) for n in (4, 7, 1, 12, 0, 5, 9, 2)]
    return prompts, completions


@pytest.fixture(scope="session")
def tokenizer():
    """One token per byte, for the random models."""
    from random_models import byte_tokenizer

    return byte_tokenizer()
