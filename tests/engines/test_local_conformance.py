"""The local engine passes the engine conformance tests."""

from __future__ import annotations

from typing import Any

import pytest

from tacit.engines import get_engine
from tacit.testing.engines import EngineConformance


@pytest.fixture(autouse=True, scope="module")
def own_place(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class TestLocal(EngineConformance):
    engine = get_engine("local")

    def settings(self, **wished: Any) -> Any:
        return self.engine.settings(**{"device": "cpu", "threads": 1, **wished})
