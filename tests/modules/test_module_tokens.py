"""`tacit eval MODULES --tokens`: tokens per episode of the modules, compared with ReAct on the same turns."""

from __future__ import annotations

import json

import pytest

from tacit.cli.main import main
from tacit.modules import read_module


@pytest.mark.slow
def test_token_counts_match_the_evaluation_and_react_uses_more(modules, tmp_path, capsys):
    command = ["eval", str(modules / "heat"), "--tokens", "--engine.device", "cpu", "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    output = capsys.readouterr().out
    result, score = json.loads(output.splitlines()[-1]), read_module(modules / "heat").scores["rl"]
    own, one, _, full, _ = result["tokens"]
    assert (result["panel_hash"], own["episodes"]) == (score["panel_hash"], 4)
    assert own["prompt_tokens_per_turn"] == pytest.approx(score["prompt_tokens"])
    assert one["context"] == "ReAct-1step with actions" and one["turns"] == own["turns"]
    assert own["tokens_per_episode"] < one["tokens_per_episode"] < full["tokens_per_episode"]
    assert "episode: mean of all tokens" in output and f"{one['tokens_per_episode']:.0f}" in output
