"""The rollout benchmark runs at both paces and prints one JSON object as its last line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked import Forked, run_script

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str | Path) -> Forked:
    return run_script(ROOT / "benchmarks" / "rollout.py", *arguments)


@pytest.mark.slow
def test_benchmark_reports_both_paces_as_json():
    few = ("--batch", "8", "--episodes", "8", "--turns", "2", "--prompt-tokens", "8", "--repeats", "1", "--threads", "1")
    done = run("--device", "cpu", "--dtype", "float32", "--only", "short,growing", *few, "--json")
    assert done.code == 0, done.err
    for case, lengths in (("short", [3, 8]), ("growing", [8, 32])):
        found = json.loads(done.out.splitlines()[-1])[case]
        assert found["tokens_per_s"]["tacit"] > 0 and found["tokens_per_s"]["lockstep"] > 0
        assert found["completion_tokens"] == lengths and found["episodes"] == 8


def test_unknown_case_is_an_error():
    done = run("--only", "raged")
    assert done.code == 2 and "unknown case raged; choose from distinct, grouped, short, ragged, growing" in done.err
