"""Every setting of a published recipe has the published value and a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from published_settings import PUBLISHED, SEEDS

from tacit.comparison.plan import make_plan
from tacit.config.checks import open_world
from tacit.config.recipe import Recipe, find_recipe, packaged, read_document
from tacit.core.errors import TacitError

CARRIED_OUT = {
    "seed", "out", "workers", "workers_at", "world_timeout_s", "overlap", "checkpoint_every", "keep", "trajectories", "wandb",
    "method.name", "engine.name",
    "engine.device", "engine.dtype", "engine.threads", "engine.token_budget", "engine.max_batch",
    "engine.gradient_checkpointing", "engine.repeatable", "engine.fast",
}  # fmt: skip
"""settings of where and how a run executes, not of what is trained"""


def flat(document: dict[str, Any]) -> dict[str, Any]:
    found = {
        f"{key}.{name}" if name else key: each
        for key, value in document.items()
        for name, each in (value.items() if isinstance(value, dict) else [("", value)])
    }
    inner = {f"method.extractor.{name}": each for name, each in found.pop("method.extractor", {}).items()}
    return found | inner


def idle(settings: dict[str, Any]) -> set[str]:
    """Settings without effect given the others."""
    imitates = settings["sft.steps"] or settings["sft.epochs"]
    found = {place for place in settings if place.startswith("sft.") and place != "sft.steps"} if not imitates else set()
    if not settings["sft.noted"] and not settings["sft.step_notes"] and not settings["sft.entries"]:
        found |= {"sft.noted", "sft.step_notes", "sft.entries", "sft.mismatched"}
    if not settings["engine.lora_rank"]:
        found |= {"engine.lora_alpha", "engine.lora_dropout", "engine.lora_targets"}
    if settings["method.name"] != "constant_context" and not settings["prompt.state_block"]:
        found |= {"prompt.bound", "prompt.block"}
    return found


def documents(name: str) -> Iterator[tuple[tuple[str, str], dict[str, Any], int]]:
    """Every (world, method) of a recipe with its complete document and its seed."""
    try:
        file = find_recipe(name, "comparison")
    except TacitError:
        recipe = Recipe.resolve(find_recipe(name, "run"), {})
        yield (recipe.world, ""), recipe.to_json(), recipe.train.seed
        return
    for cell in make_plan(read_document(file)).cells:
        yield (cell.world, cell.method), cell.document, cell.seed


def test_every_published_recipe_has_a_table_of_sources():
    names = {recipe.path.stem for recipe in packaged() if recipe.name.startswith("published/") and recipe.kind != "script"}
    assert names == set(PUBLISHED) == set(SEEDS)


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_setting_has_the_published_value_and_a_source(name):
    met, seeds = set(), []
    for column, document, seed in documents(name):
        settings, expected = flat(document), PUBLISHED[name][column]
        met.add(column)
        seeds += [seed] if seed not in seeds else []
        assert set(settings) - CARRIED_OUT - idle(settings) == set(expected), f"{column}: settings and sources do not pair up"
        wrong = {place: (settings[place], *expected[place]) for place in expected if settings[place] != expected[place][0]}
        assert not wrong, f"{column}: (ours, published, source) by setting"
        assert all(source for _, source in expected.values())
    assert met == set(PUBLISHED[name]) and seeds == SEEDS[name][0]


@pytest.mark.parametrize(("world", "steps"), [("alfworld", 50), ("cooking", 40), ("countdown", 30), ("webshop", 15)])
def test_step_limit_of_the_world_is_the_papers(world, steps):
    assert open_world(world).max_steps == steps


def test_imitation_epochs_are_the_papers():
    """Table 5: three epochs, and one in ScienceWorld, whatever the number of turns."""
    sft = {name: next(document for _, document, _ in documents(name))["sft"] for name in PUBLISHED if "constant" in name}
    assert {name.rpartition("-")[2]: own["epochs"] for name, own in sft.items()} == {
        "table1": 3, "table3": 3, "webshop": 3, "scienceworld": 1,
    }  # fmt: skip
    assert not any(own["steps"] for own in sft.values())
