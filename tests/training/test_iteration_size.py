"""One GRPO iteration on the CPU executes few enough files to read (benchmarks/iteration_files.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(("fast", "most"), [("off", 31), ("auto", 37)])
def test_iteration_executes_few_files(fast: str, most: int):
    """`off` is the reference path. `auto` is the default and also runs the CPU's fast paths; the changelog states its number.

    Runs in its own process, because a profiler would count the threads of other tests."""
    script = f"import json, iteration_files as i; print(json.dumps(sorted(i.executed_functions({fast!r}))))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"training/loop.py", "rollout/episodes.py", "engines/local/update.py"} <= set(found)
    assert len(found) <= most, "\n".join(found)
