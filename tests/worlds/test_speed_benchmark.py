"""The speed benchmark runs over any world and prints one JSON object last."""

from __future__ import annotations

import json
from pathlib import Path

from forked import Forked, run_script

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str | Path) -> Forked:
    return run_script(ROOT / "benchmarks" / "environments.py", *arguments)


def test_benchmark_prints_rates_as_json():
    done = run("--world", "countdown", "--seconds", "0.05", "--json")
    assert done.code == 0, done.err
    rates = json.loads(done.out.splitlines()[-1])["countdown"]
    assert rates["steps_per_s"] > 0 and rates["resets_per_s"] > 0


def test_unknown_world_is_an_error():
    done = run("--world", "countdwon")
    assert done.code == 2
    assert "Did you mean 'countdown'?" in done.err
