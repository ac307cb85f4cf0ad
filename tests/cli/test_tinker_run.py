"""The command line on the Tinker engine, against a service in this process: two iterations, then a resumed one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("tinker", reason="the client of the Tinker API is not installed: pip install 'tacit-agents[tinker]'")

from tacit.cli.main import main
from tacit.engines.models.bases import base_path

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))
from tinker_service import Loopback


@pytest.mark.slow
def test_tinker_run_trains_and_resumes(tmp_path, monkeypatch, capsys):
    service = Loopback()
    monkeypatch.setattr("tacit.engines.open_service", lambda settings: service)
    run = tmp_path / "run"
    reading = ["--wording", "terse", "--style", "bare", "--no-admissible", "--max-tokens", "4", "--max-steps", "2"]
    panel = ["--evaluation.tasks", "1", "--evaluation.max-steps", "1", "--evaluation.every", "0", "--no-evaluation.untrained"]
    flags = ["--engine", "tinker", "--model", str(base_path("tiny-base")), "--world", "countdown", "--engine.lora-rank", "4"]
    sizes = [
        "--groups",
        "1",
        "--group-size",
        "2",
        "--iterations",
        "2",
        "--lr",
        "1e-3",
        "--kl",
        "0.01",
        "--checkpoint-every",
        "1",
    ]
    assert main(["train", *flags, *reading, *panel, *sizes, "--out", str(run)]) == 0, capsys.readouterr().err
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 2 and max(line["behaviour_gap_max"] for line in metrics) < 1e-4
    assert json.loads(next((run / "checkpoints").glob("rl-000002/**/policy.json")).read_text())["format"] == "tinker-1"
    assert main(["train", "--resume", str(run), "--iterations", "3"]) == 0, capsys.readouterr().err


def test_missing_tinker_key_is_reported(monkeypatch, capsys):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    assert main(["train", "--engine", "tinker", "--model", "some/model", "--world", "countdown"]) == 2
    assert "$TINKER_API_KEY is not set" in capsys.readouterr().err


def test_method_the_tinker_engine_cannot_run_is_refused(capsys):
    assert main(["train", "--engine", "tinker", "--model", "some/model", "--world", "countdown", "--method", "bipace"]) == 2
    assert "needs hidden_states, which engine 'tinker' cannot do" in capsys.readouterr().err
