"""Commands on a run trained in several worlds: they require --world when the world is ambiguous."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from tacit.cli.main import main
from tacit.cli.train import show_summary
from tacit.modules.module import read_module
from tacit.runs.directory import read_summary
from tacit.runs.files import write_json

TRAIN = (
    "train --world alfworld,countdown --model tiny-base --method bipace+reuserl --adaptive --iterations 2 --groups 2 "
    "--group-size 2 --max-steps 3 --tasks 4 --evaluation.tasks 3 --evaluation.max-steps 3 --no-evaluation.untrained "
    "--engine.device cpu --engine.threads 1"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("several") / "run"
    assert main([*TRAIN.split(), "--out", str(path)]) == 0
    return path


@pytest.mark.parametrize("command", ["inspect dictionary RUN", "modules export RUN --out OUT", "eval RUN --method grpo"])
def test_ambiguous_world_must_be_named(run, command, tmp_path, capsys):
    words = [{"RUN": str(run), "OUT": str(tmp_path)}.get(word, word) for word in command.split()]
    assert main(words) == 2
    assert "was trained in several worlds (alfworld,countdown); choose one with --world." in capsys.readouterr().err
    if not command.startswith("eval"):  # a policy may be evaluated in a new world
        assert main([*words, "--world", "cooking"]) == 2
        assert "this run was trained in alfworld,countdown, not in 'cooking'" in capsys.readouterr().err


@pytest.mark.parametrize("world", ["alfworld", "countdown"])
def test_each_world_has_its_own_dictionary_and_episodes(run, world, capsys):
    assert main(["inspect", "dictionary", str(run), "--world", world, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert found["source"] == "checkpoint rl-000002" and {e["task"].partition("/")[0] for e in found["episodes"]} == {
        "train" if world == "alfworld" else "countdown"
    }
    assert found["behaviour"]["training, iteration 2"]["episodes"] == 2
    assert found["behaviour"]["evaluation after rl 2"]["episodes"] == 3


def test_exported_module_is_for_one_world_and_has_its_score(run, tmp_path, capsys):
    assert main(["modules", "export", str(run), "--out", str(tmp_path), "--world", "countdown"]) == 0
    module = read_module(tmp_path / "unified")
    assert module.world == "countdown" and module.families == ("three_numbers", "four_numbers")
    assert module.scores["rl"] == read_summary(run)["final"]["worlds"]["countdown"]
    assert main(["modules", "list", str(tmp_path)]) == 0 and "countdown/test/3" in capsys.readouterr().out
    assert main(["eval", str(tmp_path / "unified"), "--tasks", "3", "--out", str(tmp_path / "measured")]) == 0


@pytest.mark.parametrize("world", ["alfworld", "countdown"])
def test_eval_repeats_the_final_result_of_each_world(run, world, tmp_path, capsys):
    words = ["eval", str(run), "--world", world, "--out", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    final = read_summary(run)["final"]
    assert found["equals_run"] is True and found["run_success"] == final["worlds"][world]["success"]
    show_summary(Console(), read_summary(run), run)
    output = " ".join(capsys.readouterr().out.split())
    assert f"tacit eval {run} --world alfworld repeats the last evaluation in one world; the others are countdown" in output
    assert f"tacit play --policy {run} --world alfworld" in output


def test_from_scratch_run_in_several_worlds_cannot_be_exported(tmp_path, capsys):
    write_json(tmp_path / "settings.json", {"world": "alfworld,countdown", "model": "tiny", "method": {}})
    assert main(["modules", "export", str(tmp_path), "--out", str(tmp_path / "m"), "--world", "countdown"]) == 2
    assert "trained a model from scratch in several worlds" in capsys.readouterr().err


def test_eval_with_another_method_keeps_only_shared_settings(run, tmp_path, capsys):
    """Per-world settings of the run's method must not be applied to a method that lacks them."""
    words = ["eval", str(run), "--world", "countdown", "--method", "grpo", "--out", str(tmp_path), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["panel"] == "countdown/test/3"
