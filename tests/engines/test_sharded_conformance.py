"""The sharded engine passes the engine conformance tests on two ranks, with weights gathered whole and layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from forked_ranks import forked_ranks

from tacit.core.protocols import ModelSource, Policy
from tacit.engines import get_engine
from tacit.engines.sharded.launch import RankGroup
from tacit.engines.sharded.policy import load_policy, start_ranks
from tacit.testing.engines import EngineConformance

pytestmark = pytest.mark.slow


class TestSharded(EngineConformance):
    """One group of ranks for all tests; each policy replaces the previous one."""

    engine = get_engine("sharded")
    gather: ClassVar[str] = "whole"
    ranks: ClassVar[RankGroup | None] = None

    def settings(self, **wished: Any) -> Any:
        own = {"device": "cpu", "threads": 1, "ranks": 2, "gather": self.gather, "timeout_s": 60.0}
        return self.engine.settings(**{**own, **wished})

    @pytest.fixture(autouse=True, scope="class")
    def two_ranks(self, request: pytest.FixtureRequest) -> Iterator[None]:
        yield
        if request.cls.ranks is not None:
            request.cls.ranks.close()

    @contextmanager
    def policy(self, checkpoint: Path, **wished: Any) -> Iterator[Policy]:
        own, settings = type(self), self.settings(**wished)
        if own.ranks is None or own.ranks.closed:  # a failed test may have stopped them
            with forked_ranks():
                own.ranks = start_ranks(settings)
        yield load_policy(ModelSource(str(checkpoint), seed=3), settings, own.ranks)


class TestLayerByLayer(TestSharded):
    gather = "layer"
    ranks = None
