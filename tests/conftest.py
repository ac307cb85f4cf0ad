"""Fixtures for the whole suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of published games and datasets: $TACIT_SHARED_DATA, or `shared/data` beside the project."""
    place = os.environ.get("TACIT_SHARED_DATA")
    path = Path(place) if place else ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no shared data at {path}; set TACIT_SHARED_DATA to the folder that holds it")
    return path
