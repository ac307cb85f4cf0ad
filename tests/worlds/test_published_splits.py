"""Published splits: panels use the whole split by default and never more tasks than it has."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace

import pytest
from alfworld_problem import lines

from tacit.cli.main import main
from tacit.config.checks import prepare
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.evaluation.panels import Panel, choose_panel
from tacit.training.settings import EvaluationSettings, TrainSettings
from tacit.training.setup import TaskSets
from tacit.worlds import get_environment

WORLD = get_environment("alfworld")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A release with six training games and evaluation splits of six and three games."""
    for folder, count in (("train", 6), ("valid_seen", 6), ("valid_unseen", 3)):
        with lzma.open(tmp_path / f"{folder}.jsonl.xz", "wt") as file:
            file.write("\n".join(lines(split=folder)[:count]))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    return replace(WORLD, published={"published_train": 6, "valid_seen": 6, "valid_unseen": 3}, panels={})


def test_further_published_split_is_evaluated_whole(small):
    evaluation = EvaluationSettings(split="valid_seen", tasks=5, also="valid_unseen, seen, valid_seen:2, unseen:4")
    found = TaskSets.of(small, TrainSettings(tasks=4, evaluation=evaluation))
    assert found.panel.name == "alfworld/valid_seen/5"
    assert [panel.name for panel in found.further] == [
        "alfworld/valid_unseen/3",
        "alfworld/seen/5",
        "alfworld/valid_seen/2",
        "alfworld/unseen/4",
    ]


def test_published_split_is_used_whole_by_default(small):
    settings = TrainSettings(split="published_train", evaluation=EvaluationSettings(split="valid_seen", also="valid_unseen"))
    found = TaskSets.of(small, settings)
    assert [len(tasks) for tasks in (found.training, found.panel.tasks, found.further[0].tasks)] == [6, 6, 3]
    assert choose_panel(get_environment("countdown"), "test", 0).name == "countdown/test/128"


def test_published_split_returns_at_most_its_size(small):
    assert len(small.tasks_of("valid_unseen", 99, 0)) == 3 and len(Panel.of(small, "valid_unseen", 99).tasks) == 3
    assert len(small.tasks_of("unseen", 99, 0)) == 99, "a generated split has as many as one likes"


def test_incomplete_download_is_an_error(small):
    incomplete = replace(small, published={"valid_seen": 140})
    with pytest.raises(TacitError, match=r"'valid_seen' has too few games: 140 were requested, but .* has 6 games loaded"):
        Panel.of(incomplete, "valid_seen", 500)


def test_recipe_records_the_number_of_evaluation_tasks():
    recipe = prepare(Recipe.from_json({"world": "alfworld", "evaluation": {"split": "valid_unseen"}}), (WORLD,)).recipe
    assert recipe.to_json()["evaluation"]["tasks"] == 134
    recipe = prepare(Recipe.from_json({"world": "alfworld"}), (WORLD,)).recipe
    assert recipe.to_json()["evaluation"]["tasks"] == 128


def test_eval_expert_command_uses_the_given_split(small, monkeypatch, capsys):
    oracle = {"oracle": WORLD.experts["oracle"]}  # the default expert cannot parse the goals of these small games
    monkeypatch.setattr("tacit.worlds.alfworld.ENVIRONMENT", replace(small, experts=oracle))
    numbered = ["--split", "valid_seen", "--tasks", "2"]
    for flags, panel in ((["--split", "valid_unseen"], "valid_unseen/3"), (numbered, "valid_seen/2")):
        assert main(["eval", "expert", "--world", "alfworld", "--json", *flags]) == 0
        assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["panel"] == f"alfworld/{panel}"


@pytest.mark.slow
def test_real_published_split_is_used_whole(shared_data, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(shared_data / "alfworld"))
    panel = choose_panel(WORLD, "valid_seen", 0)
    assert panel.name == "alfworld/valid_seen/140" and panel.hash == WORLD.panels["valid_seen"][140]
    found = TaskSets.of(
        WORLD, TrainSettings(tasks=3, evaluation=EvaluationSettings(split="unseen", tasks=200, also="valid_seen"))
    )
    assert [p.name for p in found.further] == ["alfworld/valid_seen/140"]
