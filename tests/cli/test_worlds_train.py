"""TextCraft and Sokoban in real runs: imitation, two iterations of each method, and the other commands."""

from __future__ import annotations

import json

import pytest

from tacit.cli.main import main
from tacit.runs.directory import read_summary

SMALL = [
    *(
        "--model",
        "tiny",
        "--tiny.vocab",
        "512",
        "--tiny.hidden",
        "32",
        "--tiny.layers",
        "1",
        "--tiny.heads",
        "2",
        "--tiny.kv-heads",
        "2",
    ),
    *("--tiny.intermediate", "64", "--engine.device", "cpu", "--engine.threads", "1", "--sft.steps", "3", "--sft.tasks", "4"),
    *("--sft.batch", "4", "--iterations", "2", "--groups", "2", "--group-size", "2", "--tasks", "8", "--max-steps", "4"),
    *("--evaluation.tasks", "2", "--evaluation.max-steps", "4", "--no-evaluation.untrained"),
]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("method", ["grpo", "reuserl", "bipace", "constant_context"])
@pytest.mark.parametrize("world", ["textcraft", "sokoban"])
def test_two_iterations_of_each_method(world, method, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", "--world", world, "--method", method, *SMALL, "--out", str(out)]) == 0
    output, summary = capsys.readouterr().out, read_summary(out)
    assert f"{method} on {world}" in output and "sft 3/3" in output and "rl 2/2" in output
    assert summary["panel"] == f"{world}/test/2" and summary["final"]["stage"] == "rl"
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all(row.get("crashed", 0) == 0 for row in steps) and any("success" in row for row in steps)


@pytest.mark.parametrize("world", ["textcraft", "sokoban"])
def test_list_eval_and_play(world, capsys):
    assert main(["list", "worlds"]) == 0
    assert world in capsys.readouterr().out
    assert main(["eval", "expert", "--world", world, "--tasks", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["success"] == 1.0
    assert main(["play", "--world", world, "--split", "hard", "--policy", "expert"]) == 0
    assert main(["list", "panels", "--world", world]) == 0
    assert f"{world}/test/128" in capsys.readouterr().out
