"""Warnings before a run that will hardly learn."""

from __future__ import annotations

import pytest

from tacit.cli.train import make_parser
from tacit.config.checks import prepare
from tacit.config.recipe import Recipe, run_recipe


def warnings(*words: str, method: str = "grpo") -> str:
    _, overrides = make_parser(method).parse(["--world", "countdown", *words])
    return "\n".join(prepare(Recipe.resolve(None, overrides)).recipe.notes)


def test_random_policy_without_imitation_and_with_low_learning_rate_warns():
    notes = warnings("--model", "tiny", "--iterations", "3")
    assert "tiny starts from random weights and there is no imitation" in notes and "add --sft.steps 300" in notes
    assert "lr = 1e-06 is meant for language models and too low for tiny; try --lr 3e-4" in notes
    assert "tiny-base was not trained on any task" in warnings("--model", "tiny-base")


def test_high_imitation_learning_rate_for_a_language_model_warns():
    notes = warnings("--model", "owner/language-model", "--sft.steps", "60", "--iterations", "0")
    assert "sft.lr = 0.001 is meant for policies of a million parameters" in notes and "try --sft.lr 1e-4" in notes
    assert "sft.lr" not in warnings("--model", "owner/language-model", "--sft.steps", "60", "--sft.lr", "1e-4")
    assert "sft.lr" not in warnings("--model", "owner/language-model") + warnings("--model", "tiny-base", "--sft.steps", "60")


def test_extractor_style_that_differs_from_its_examples_warns():
    flags = ("--method", "complementary", "--sft.steps", "60", "--sft.entries", "100", "--sft.lr", "1e-4")
    assert "add --extractor.style terse" in warnings("--model", "owner/language-model", *flags, method="complementary")
    notes = warnings("--model", "owner/language-model", *flags, "--extractor.style", "terse", method="complementary")
    assert "lines" not in notes + warnings("--model", "tiny-base", *flags, method="complementary")
    both = (*flags[2:], "--method", "reuserl+complementary", "--invalid-penalty", "0.1")
    notes = warnings("--model", "owner/language-model", *both, method="reuserl+complementary")
    assert notes.count("add --extractor.style terse") == 1, "only the extractor's style warns, once"


def test_sensible_settings_do_not_warn():
    for flags in (("--model", "tiny", "--sft.steps", "300", "--lr", "3e-4"), ("--model", "owner/language-model")):
        assert "lr" not in warnings(*flags) and "hardly" not in warnings(*flags)
    assert "hardly" not in warnings("--model", "tiny", "--sft.steps", "3", "--iterations", "0"), "nothing is trained with RL"


@pytest.mark.parametrize("name", ["quickstart", "countdown", "household-published"])
def test_packaged_recipes_do_not_warn(name):
    notes = prepare(Recipe.resolve(run_recipe(name), {})).recipe.notes
    assert not any("hardly" in note for note in notes)
