"""The default evaluation split: defined by the world and written to the settings."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tacit.cli.main import main
from tacit.comparison.plan import make_plan
from tacit.config.checks import find_world, open_world, prepare
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.evaluation.panels import Panel
from tacit.training.settings import TrainSettings
from tacit.training.setup import TaskSets
from tacit.worlds import WORLDS

QUICK = ["--model", "tiny-base", "--engine.threads", "1", "--engine.device", "cpu", "--no-evaluation.untrained"]
SMALL = [
    "--sft.steps",
    "1",
    "--sft.tasks",
    "2",
    "--sft.batch",
    "4",
    "--iterations",
    "0",
    "--tasks",
    "16",
    "--evaluation.tasks",
    "2",
]


@pytest.mark.parametrize(
    ("world", "split"),
    [
        ("alfworld", "unseen"),
        ("cooking", "test"),
        ("countdown", "test"),
        ("textcraft", "test"),
        ("sokoban", "test"),
        ("webshop", "test"),
    ],
)
def test_default_split_comes_from_the_world_and_is_recorded(world, split):
    recipe = prepare(Recipe.from_json({"world": world}), (open_world(world),)).recipe
    assert recipe.to_json()["evaluation"]["split"] == split
    plan = make_plan({"seeds": [0], "worlds": {world: {}}, "methods": {"grpo": {}}})
    assert plan.cells[0].document["evaluation"]["split"] == split
    assert Panel.of(open_world(world), "", 2).name == f"{world}/{split}/2"


@pytest.mark.parametrize("name", WORLDS)
def test_default_split_exists_and_is_not_the_training_split(name):
    world = find_world(name)
    assert world.panel_split in world.splits and world.panel_split != "train"


def test_named_split_is_kept():
    recipe = Recipe.from_json({"world": "alfworld", "evaluation": {"split": "seen"}})
    assert prepare(recipe, (open_world("alfworld"),)).recipe.train.evaluation.split == "seen"


def test_stored_default_split_round_trips():
    recipe = prepare(Recipe.from_json({"world": "cooking"}), (open_world("cooking"),)).recipe
    stored = recipe.to_json()
    again = prepare(Recipe.from_json(stored), (open_world("cooking"),)).recipe
    assert stored["evaluation"]["split"] == "test" and again.to_json() == stored


def test_default_split_applies_without_the_command_line():
    settings = TrainSettings(tasks=2)
    assert settings.evaluation.split == ""
    small = replace(settings, evaluation=replace(settings.evaluation, tasks=3))
    assert TaskSets.of(open_world("alfworld"), small).panel.name == "alfworld/unseen/3"


def test_world_without_its_default_split_is_refused():
    world = replace(open_world("countdown"), splits=("train", "hard"))
    with pytest.raises(TacitError, match=r"no split 'test' to evaluate on; choose one of train, hard"):
        prepare(Recipe.from_json({"world": "countdown"}), (world,))
    with pytest.raises(TacitError, match="no split 'test'"):
        Panel.of(world, "", 2)
    named = Recipe.from_json({"world": "countdown", "evaluation": {"split": "hard"}})
    assert prepare(named, (world,)).recipe.train.evaluation.split == "hard"


@pytest.mark.parametrize("key", ["split", "also"])
def test_unknown_split_is_refused(key):
    with pytest.raises(TacitError, match="unknown split 'test' of world 'alfworld'"):
        prepare(Recipe.from_json({"world": "alfworld", "evaluation": {key: "test"}}), (open_world("alfworld"),))


def test_custom_panel_needs_no_split(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(Panel.of(open_world("countdown"), "train", 2).to_json() | {"name": "mine"}))
    world = replace(open_world("countdown"), splits=("train",))
    recipe = Recipe.from_json({"world": "countdown", "evaluation": {"panel": str(file)}})
    recipe = prepare(recipe, (world,)).recipe
    assert TaskSets.of(world, replace(recipe.train, tasks=2)).panel.name == "mine"


def test_eval_play_and_list_use_the_default_split(capsys):
    assert main(["eval", "expert", "--world", "alfworld", "--tasks", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["panel"] == "alfworld/unseen/2"
    assert main(["play", "--world", "alfworld", "--policy", "expert"]) == 0
    assert "unseen" in capsys.readouterr().out.splitlines()[0]
    assert main(["list", "panels", "--world", "alfworld"]) == 0
    (usual,) = [line for line in capsys.readouterr().out.splitlines() if ", the default" in line]
    assert "alfworld/unseen/128" in usual


@pytest.mark.slow
def test_alfworld_run_uses_default_split_and_eval_repeats_it(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", "--world", "alfworld", *QUICK, *SMALL, "--out", str(out)]) == 0
    assert "alfworld/unseen/2" in capsys.readouterr().out
    assert json.loads((out / "settings.json").read_text())["evaluation"]["split"] == "unseen"
    assert main(["eval", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["panel"] == "alfworld/unseen/2"
    assert main(["train", "--resume", str(out)]) == 0
    assert "is finished" in capsys.readouterr().out
