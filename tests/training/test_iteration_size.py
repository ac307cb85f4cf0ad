"""One GRPO iteration on the CPU stays small enough to read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_FILES = 41


def test_an_iteration_executes_at_most_forty_files():
    """In its own process: a profiler would count the other tests' threads."""
    script = "import json, iteration_files as i; print(json.dumps({k: sorted(v) for k, v in i.executed_functions().items()}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"training/loop.py", "rollout/episodes.py", "engines/local/update.py"} <= found.keys()
    assert len(found) <= MAX_FILES, "\n".join(sorted(found))
