"""Fixtures for the whole suite."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from hypothesis import HealthCheck, settings
from small_modules import Trained, train_both

from tacit.core.trust import trust_command_line, trust_names

# Slow generation of examples only shows that the machine is busy.
settings.register_profile("busy", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("busy")

# Test processes already share the cores, so each uses one thread. Must be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

ROOT = Path(__file__).resolve().parents[1]

# Worlds and methods of the test suite that test files may name. Any other name of code in a file is refused.
TESTS = ROOT / "tests"
trust_names(f"{TESTS / 'guessing.py'}:SAME", f"{TESTS / 'guessing.py'}:NEXT", f"{TESTS / 'teaching.py'}:Teaching")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`quick_cases(n)`: the cases of a parametrized test after its first n are slow."""
    seen: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("quick_cases"):
            name = item.nodeid.partition("[")[0]
            seen[name] += 1
            if seen[name] > mark.args[0]:
                item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection. Engines collect garbage after each out-of-memory error, and scanning
    these 800,000 objects takes half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_trust() -> Iterator[None]:
    """What a test trusts, and whether it used trusted code, does not reach the next one: commands in messages depend on it."""
    with trust_command_line([]):
        yield


@pytest.fixture
def trusted_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like --trust-code: files may name code."""
    monkeypatch.setenv("TACIT_TRUST_CODE", "1")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of published games and datasets: $TACIT_SHARED_DATA, or `shared/data` beside the project."""
    place = os.environ.get("TACIT_SHARED_DATA")
    path = Path(place) if place else ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no shared data at {path}; set TACIT_SHARED_DATA to the folder that holds it")
    return path


@pytest.fixture(scope="session")
def trained_modules(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Adapters for heat and for pick (and pick2), trained once by one test process. Read-only."""
    here = tmp_path_factory.getbasetemp()
    place = (here.parent if "PYTEST_XDIST_WORKER" in os.environ else here) / "trained"
    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        flock(lock, LOCK_EX)
        patch.setenv("COLUMNS", "160")
        patch.setenv("TACIT_CACHE", str(place / "cache"))
        return train_both(place)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on this machine; install one (Debian: apt-get install chromium), or name it in $CHROMIUM")
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()
