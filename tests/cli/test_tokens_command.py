"""`tacit eval --tokens`: the token table of a run's episodes, the same table from its journal, and refused targets."""

from __future__ import annotations

import json

import pytest

from tacit.cli.main import main

TINY = ("--tiny.hidden", "32", "--tiny.layers", "1", "--tiny.heads", "2", "--tiny.kv-heads", "2", "--tiny.intermediate", "64")
SMALL = (*TINY, "--tiny.vocab", "512", "--tiny.context", "4096", "--engine.device", "cpu", "--engine.threads", "1")


@pytest.fixture
def own_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measure(capsys, *flags):
    command = ["eval", "tiny", "--world", "countdown", "--tasks", "3", "--max-steps", "8", "--json", "--tokens"]
    assert main([*command, *SMALL, *flags]) == 0
    output = capsys.readouterr().out
    return json.loads(output.splitlines()[-1]), output


@pytest.mark.slow
def test_token_table_covers_five_contexts(own_directory, capsys):
    result, output = measure(capsys, "--method", "constant_context")
    own, one, one_unlisted, full, full_unlisted = result["tokens"]
    assert [use["context"] for use in result["tokens"]] == [
        *("own context", "ReAct-1step with actions", "ReAct-1step without actions"),
        *("ReAct-full with actions", "ReAct-full without actions"),
    ]
    for listed, unlisted in ((one, one_unlisted), (full, full_unlisted)):
        assert unlisted["prompt_tokens_per_turn"] < listed["prompt_tokens_per_turn"]
        assert unlisted["context"] in output and listed["context"] in output
    # The counts of the own context equal what the evaluation read.
    assert own["prompt_tokens_per_turn"] == pytest.approx(result["prompt_tokens"])
    assert full["growth_per_turn"] > 5 and abs(own["growth_per_turn"]) < full["growth_per_turn"] / 5
    assert f"{full['prompt_tokens_per_turn'] / own['prompt_tokens_per_turn']:.2f}×" in output
    assert len(full["by_turn"]) == 8

    again, _ = measure(capsys, "--method", "constant_context")
    assert again["tokens"] == result["tokens"], "episodes read back from the journal count the same"


def test_tokens_are_not_counted_without_the_flag(own_directory, capsys):
    assert main(["eval", "tiny", "--world", "countdown", "--tasks", "1", "--max-steps", "1", "--json", *SMALL]) == 0
    output = capsys.readouterr().out
    assert "tokens" not in json.loads(output.splitlines()[-1]) and "ReAct" not in output


def test_tokens_of_the_expert_are_refused(own_directory, capsys):
    assert main(["eval", "expert", "--world", "countdown", "--tasks", "1", "--tokens"]) == 2
    assert "--tokens counts with a policy's own tokenizer, and 'expert' has none" in capsys.readouterr().err
