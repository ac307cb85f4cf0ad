"""A run killed with SIGKILL and resumed ends with the same weights, bit for bit, as one that was not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tacit.runs.metrics import read_metrics

FLAGS = [
    *("--world", "countdown", "--method", "grpo", "--model", "tiny-0.5m", "--seed", "3", "--tasks", "64", "--max-steps", "5"),
    *("--wording", "terse", "--style", "bare", "--no-admissible", "--history", "1", "--groups", "3", "--group-size", "4"),
    *("--iterations", "6", "--lr", "1e-3", "--checkpoint-every", "1", "--keep", "2", "--kl", "0.05", "--entropy", "0.01"),
    *("--sft.steps", "24", "--sft.batch", "8", "--sft.tasks", "32", "--engine.threads", "1", "--engine.device", "cpu"),
    *("--evaluation.tasks", "6", "--evaluation.every", "2", "--evaluation.max-steps", "5", "--evaluation.temperature", "1.0"),
]


def start(*words: str | Path) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tacit.cli.main", "train", *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen) -> None:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


def kill_after(process: subprocess.Popen, run: Path, records: int, extra_s: float) -> None:
    """SIGKILL a while after the metrics file has `records` lines."""
    deadline = time.monotonic() + 280
    while process.poll() is None and time.monotonic() < deadline:
        if len(read_metrics(run / "metrics.jsonl")) >= records:
            time.sleep(extra_s)
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(*FLAGS, "--out", whole))

    kill_after(start(*FLAGS, "--out", broken), broken, records=13, extra_s=0.0)  # inside imitation, between two checkpoints
    kill_after(start("--resume", broken), broken, records=25, extra_s=0.02)  # inside the first iterations of practice
    kill_after(start("--resume", broken), broken, records=28, extra_s=0.05)  # wherever 50 ms later is: often mid-checkpoint
    finish(start("--resume", broken))

    expected, got = (json.loads((run / "summary.json").read_text()) for run in (whole, broken))
    assert got["digest"] == expected["digest"]
    assert [e["success"] for e in got["evaluations"]] == [e["success"] for e in expected["evaluations"]]
    for key in ("episodes", "turns", "generated_tokens", "panel_hash"):
        assert got[key] == expected[key], key

    timing = {"at", "seconds", "tokens_per_s"}
    records = [
        [{k: v for k, v in r.items() if k not in timing} for r in read_metrics(run / "metrics.jsonl")]
        for run in (whole, broken)
    ]
    assert records[0] == records[1]
    for path in sorted((whole / "trajectories").iterdir()):
        assert path.read_bytes() == (broken / "trajectories" / path.name).read_bytes(), path.name
    assert not list((broken / "checkpoints").glob(".*"))
