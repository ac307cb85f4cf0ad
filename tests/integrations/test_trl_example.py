"""TRL trains on ALFWorld through the Gymnasium integration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs trl")
pytest.importorskip("gymnasium", reason="needs the extra gymnasium")
ROOT = Path(__file__).resolve().parents[2]


def test_example_runs_two_steps_of_grpo(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "examples" / "trl_alfworld.py"),
        str(ROOT / "tacit/engines/models/bases/tiny-base"),
        "2",
    ]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=settings, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("'reward'") + done.stderr.count("'reward'") == 2 and "'train_loss'" in done.stdout + done.stderr
