"""The decode benchmark times a step with and without adapters and reports its difference from the model's own pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked import run_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("rank", [2, 16])
def test_decode_benchmark_reports_times_and_a_small_error(rank: int) -> None:
    few = ("--rank", str(rank), "--rows", "2,3", "--before", "9", "--repeats", "1")
    done = run_script(ROOT / "benchmarks" / "decode_step.py", "--device", "cpu", *few, "--json")
    assert done.code == 0, done.err
    figures = json.loads(done.out.splitlines()[-1])
    assert list(figures["rows"]) == ["2", "3"]
    for row in figures["rows"].values():
        assert row["apart"] < 1e-5 and min(row["ms"].values()) > 0 and set(row["ms"]) == {"adapters", "none"}
