"""The rollout benchmark plays at both paces and prints one JSON object last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "rollout.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_paces_beside_each_other_as_json():
    few = ("--batch", "8", "--episodes", "8", "--turns", "2", "--prompt-tokens", "8", "--repeats", "1", "--threads", "1")
    done = run("--device", "cpu", "--dtype", "float32", "--only", "short", *few, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["short"]
    assert found["tokens_per_s"]["tacit"] > 0 and found["tokens_per_s"]["lockstep"] > 0
    assert found["completion_tokens"] == [3, 8] and found["episodes"] == 8


def test_an_unknown_case_is_an_error():
    done = run("--only", "raged")
    assert done.returncode == 2 and "raged is none of distinct, grouped, short, ragged" in done.stderr
