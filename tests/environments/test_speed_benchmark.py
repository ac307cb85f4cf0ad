"""The speed benchmark runs over any world and prints one JSON object last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "environments.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_rates_of_one_world_as_json():
    done = run("--world", "countdown", "--seconds", "0.05", "--json")
    assert done.returncode == 0, done.stderr
    rates = json.loads(done.stdout.splitlines()[-1])["countdown"]
    assert rates["steps_per_s"] > 0 and rates["resets_per_s"] > 0


def test_an_unknown_world_is_an_error():
    done = run("--world", "countdwon")
    assert done.returncode == 2
    assert "Did you mean 'countdown'?" in done.stderr
