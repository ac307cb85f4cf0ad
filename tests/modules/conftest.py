from __future__ import annotations

from pathlib import Path

import pytest
from small_modules import Trained


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def modules(trained_modules: Trained) -> Path:
    """Adapters for heat and for pick (and pick2). Read-only."""
    return trained_modules.modules
