"""An ALFWorld module trained from recorded episodes and then with RL wins unseen houses."""

from __future__ import annotations

import pytest
from household_logs import as_react, household, write_lines

from tacit.cli.main import main
from tacit.modules import read_module


@pytest.mark.slow
def test_module_from_recorded_episodes_wins_unseen_houses(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    logs = write_lines(tmp_path / "explorer.jsonl", [as_react(line) for line in household(24, ["heat"])])
    out = tmp_path / "modules"
    flags = [
        *("--world", "alfworld", "--method", "constant_context", "--model", "tiny-base", "--skills", "heat", "--tasks", "64"),
        *("--sft.steps", "60", "--sft.batch", "16", "--iterations", "1", "--groups", "2", "--lr", "1e-4"),
        *("--evaluation.split", "unseen", "--evaluation.tasks", "12", "--evaluation.max-steps", "30", "--max-steps", "30"),
        *("--engine.device", "cpu", "--engine.threads", "1"),
    ]
    assert main(["modules", "train", "--from", str(logs), "--out", str(out), *flags]) == 0
    module = read_module(out / "heat")
    assert module.from_logs["episodes"] == 24 and module.from_logs["practised"]
    assert module.scores["untrained"]["successes"] == 0
    assert module.scores["sft"]["successes"] >= 4 and module.scores["rl"]["successes"] >= 4, "of 12 unseen houses"
