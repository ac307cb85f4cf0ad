"""Fixtures of the worlds' tests."""

from __future__ import annotations

import pytest

from tacit.core.errors import TacitError


@pytest.fixture(scope="module")
def bench():
    """The code world's sandbox servers; skips where no sandbox can be made."""
    from tacit.worlds.code.world import Bench

    try:
        opened = Bench()
    except TacitError as error:
        pytest.skip(str(error))
    yield opened
    opened.close()
