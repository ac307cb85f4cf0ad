"""The faults for which the serving benchmark exits with status 1."""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path

import pytest

PLACE = Path(__file__).resolve().parents[2] / "benchmarks"
GOOD = {
    "transcripts": {"episodes": 504, "distinct": 64, "differ": 0},
    "killed": {"noticed": 64, "as": ["IncompleteReadError"], "within_s": 0.004, "old_session": 410, "exit": 0},
}


def test_only_connection_errors_count_as_knowing_of_the_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(PLACE), *sys.path])
    count_noticed = runpy.run_path(str(PLACE / "serve.py"))["count_noticed"]
    lost = [ConnectionResetError(), asyncio.IncompleteReadError(b"", 1), ConnectionRefusedError()]
    assert count_noticed([*lost, None, AssertionError(), KeyError("action"), ValueError()]) == 3


@pytest.mark.parametrize(
    ("part", "wrong", "says"),
    [
        ("transcripts", {"differ": 2}, "2 of 504 episodes differ from Agent's"),
        ("transcripts", {"episodes": 0}, "none was compared"),
        ("killed", {"noticed": 63}, "63 of 64 sessions noticed"),
        ("killed", {"old_session": 200}, "an old session with 200, not 410"),
        ("killed", {"exit": -6}, "exited with status -6"),
    ],
)
def test_benchmark_reports_each_fault(part: str, wrong: dict, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(PLACE), *sys.path])
    faults = runpy.run_path(str(PLACE / "serve.py"))["faults"]
    assert faults(GOOD, 64) == []
    (fault,) = faults({**GOOD, part: {**GOOD[part], **wrong}}, 64)
    assert says in fault
