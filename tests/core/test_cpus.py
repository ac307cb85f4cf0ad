"""usable_cpus: CPU affinity and container quotas."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tacit.core.platform import usable_cpus

needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no process to CPUs")


@needs_affinity
def test_pinned_process_has_one_usable_cpu() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)


@needs_affinity
@pytest.mark.parametrize(
    ("quota", "usable"),
    [("max 100000", 8), ("300000 100000", 3), ("350000 100000", 3), ("50000 100000", 1), ("900000 100000", 8), ("", 8)],
)
def test_container_quota_limits_usable_cpus(quota: str, usable: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(Path, "read_text", lambda path: quota)
    assert usable_cpus() == usable
