"""`tacit eval reader` and `tacit play --policy reader`: the rule agent acts from the prompt, like a policy."""

from __future__ import annotations

import json

import pytest

from tacit.cli.main import main


def measure(capsys, *flags: str) -> dict:
    assert main(["eval", "reader", "--world", "alfworld", "--tasks", "6", "--json", *flags]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_eval_reader_records_its_prompts(capsys, own_directory):
    result = measure(capsys)
    assert result["panel"] == "alfworld/unseen/6" and result["success"] > 0.8 and result["fingerprint"] == "reader of alfworld"
    assert (result["reads"]["method"], result["reads"]["wording"], result["reads"]["block"]) == (
        *("constant_context", "terse", "full"),
    )
    assert 100 < result["prompt_tokens"] < 1000, "it read prompts, as a policy does"
    assert not list(own_directory.iterdir()), "an episode that costs nothing is not kept"
    paper = measure(capsys, "--block", "paper")
    assert paper["reads"]["block"] == "paper" and paper["prompt_tokens"] < result["prompt_tokens"]


def test_play_reader(capsys):
    assert main(["play", "--policy", "reader", "--world", "alfworld", "--prompts"]) == 0
    output = capsys.readouterr().out
    assert "subgoal: find_object" in output and "success in" in output


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--world", "countdown"), "world 'countdown' has no rule agent"),
        ((), "'reader' needs a world"),
        (("--world", "alfworld", "--no-state-block"), "needs a prompt with a state block"),
        (("--world", "alfworld", "--block", "papers"), "unknown form 'papers' of the state block"),
        (("--world", "alfworld", "--tokens"), "--tokens counts with a policy's own tokenizer, and 'reader' has none"),
    ],
)
def test_eval_reader_refuses_bad_arguments(capsys, flags, reason):
    assert main(["eval", "reader", "--tasks", "1", *flags]) == 2
    assert reason in capsys.readouterr().err
