from __future__ import annotations

from pathlib import Path

import pytest
from served import served
from small_modules import Trained


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def modules(cache: None, trained_modules: Trained) -> Path:
    """Adapters for heat and for pick (and pick2). Read-only."""
    return trained_modules.modules


@pytest.fixture(scope="module")
def server(modules):
    with served(modules) as found:
        yield found
