"""Fixtures for the whole suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How fast examples are drawn says how busy the machine is, not what is wrong.
settings.register_profile("busy", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("busy")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of published games and datasets: $TACIT_SHARED_DATA, or `shared/data` beside the project."""
    place = os.environ.get("TACIT_SHARED_DATA")
    path = Path(place) if place else ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no shared data at {path}; set TACIT_SHARED_DATA to the folder that holds it")
    return path
