"""Recipe tests only read settings, so the requirements of worlds need not be installed."""

from __future__ import annotations

import pytest

from tacit.core.world import Environment


@pytest.fixture(autouse=True)
def every_world_is_ready(monkeypatch):
    monkeypatch.setattr(Environment, "missing", property(lambda self: ()))
