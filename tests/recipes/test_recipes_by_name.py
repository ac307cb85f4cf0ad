"""Recipes can be named from anywhere. A file is given by its path and takes precedence."""

from __future__ import annotations

import shutil

import pytest

from tacit.cli.main import main
from tacit.config.recipe import FOLDER, comparison_recipe, find_recipe, packaged, run_recipe
from tacit.core.errors import TacitError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("name", ["comparisons/step-credit", "comparisons/step-credit.toml", "step-credit", "step-credit.toml"])
def test_recipe_name_needs_neither_folder_nor_suffix(name):
    assert comparison_recipe(name) == FOLDER / "comparisons" / "step-credit.toml"


def test_recipe_name_may_contain_dots():
    assert comparison_recipe("bipace-table2-1.5b").name == "bipace-table2-1.5b.toml"


def test_existing_file_wins_over_a_recipe_of_the_same_name(tmp_path):
    shutil.copy(run_recipe("countdown"), tmp_path / "quickstart")
    assert run_recipe("quickstart").resolve() == tmp_path / "quickstart"
    (tmp_path / "quickstart").unlink()
    (tmp_path / "quickstart").mkdir()  # a directory, for example a run, is not a settings file
    assert run_recipe("quickstart") == FOLDER / "quickstart.toml"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--config", "quikstart"], "unknown recipe 'quikstart'. Did you mean 'quickstart'? Known: "),
        (["train", "--config", "mine.toml"], "the settings file mine.toml does not exist"),
        (["train", "--config", "radius"], "comparisons/radius is a comparison; run it with `tacit compare radius --jobs 2`"),
        (["compare", "quickstart"], "quickstart is a run; run it with `tacit train --config quickstart`"),
        (["compare", "published/bipace-tabel4"], "Did you mean 'published/bipace-table4'?"),
        (["modules", "train", "--config", "household-module", "--out", "x"], "Did you mean 'household-modules'?"),
        (["list", "recipes", "quik"], "unknown recipe 'quik'"),
        (["list", "worlds", "quickstart"], "`tacit list worlds` takes no name"),
    ],
)
def test_unknown_recipe_name_suggests_the_nearest(words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_suggested_recipes_fit_the_command():
    with pytest.raises(TacitError) as refused:
        run_recipe("step-credti")
    assert "step-credit" not in str(refused.value).partition("Known")[2]


def test_all_recipes_are_listed_with_summary_and_command(capsys):
    assert main(["list", "recipes"]) == 0
    printed = capsys.readouterr().out
    for recipe in packaged():
        assert f"\n{recipe.name} " in printed
        assert recipe.summary[-1] in ".?)" and len(recipe.summary) > 20  # one complete sentence
        assert any(verb in recipe.command for verb in ("tacit train", "tacit compare", "tacit modules train", "bash"))
    assert "tacit modules train --config household-modules --out modules/household" in printed


def test_list_recipe_prints_its_path(capsys):
    assert main(["list", "recipes", "constant-context-table2"]) == 0
    assert capsys.readouterr().out == f"{find_recipe('constant-context-table2')}\n"


@pytest.mark.slow
def test_recipe_runs_by_its_name(capsys):
    assert main(["compare", "step-credit", "--dry-run"]) == 0
    assert "bipace-ngram" in capsys.readouterr().out
    assert main(["train", "--config", "quickstart", "--out", "nowhere", "--groups", "0"]) == 2
    assert "groups = 0 must be at least 1" in capsys.readouterr().err


def test_short_names_of_recipes_are_unique():
    names = [recipe.path.stem for recipe in packaged()]
    assert len(set(names)) == len(names)
