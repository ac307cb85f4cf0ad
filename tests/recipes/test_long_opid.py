"""The OPID comparisons: their columns are the five planned ones, and each trains for one small iteration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.cli.main import main
from tacit.comparison.plan import make_plan
from tacit.config.recipe import comparison_recipe, read_document

COLUMNS = ("grpo", "opid", "opid-placebo", "opid-oracle", "opid-published")


def test_outcome_is_the_mean_of_the_last_three_evaluations():
    """`outcome` in the file must say so; a comment does not."""
    for recipe in ("long-opid", "long-opid-qwen"):
        plan = make_plan(read_document(comparison_recipe(recipe)), recipe)
        assert plan.outcome == 3
        assert all(c.document["schedule"]["iterations"] // c.document["evaluation"]["every"] >= 3 for c in plan.cells)


def documents(recipe: str, world: str = "household") -> dict[str, dict]:
    plan = make_plan(read_document(comparison_recipe(recipe)), recipe)
    return {cell.method: cell.document for cell in plan.cells if cell.world == world}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("recipe", "world"), [("long-opid", "household"), ("long-opid", "household-notes"), ("long-opid-qwen", "household")]
)
def test_columns_differ_only_in_notes_and_their_weight(recipe, world):
    found = documents(recipe, world)
    assert tuple(found) == COLUMNS
    notes = {name: (doc["method"]["skill_weight"], doc["method"]["notes"]) for name, doc in found.items() if name != "grpo"}
    assert notes == {
        "opid": ("auto:0.1", "true"),
        "opid-placebo": ("auto:0.1", "placebo"),
        "opid-oracle": ("auto:0.1", "oracle"),
        "opid-published": (0.001, "true"),
    }
    assert len({json.dumps([doc["schedule"], doc["prompt"], doc["evaluation"]]) for doc in found.values()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "column"), [*(("long-opid", column) for column in COLUMNS), ("long-opid-qwen", "opid")])
def test_column_trains_for_one_small_iteration(recipe, column, tmp_path, capsys):
    document = documents(recipe)[column]
    document |= {
        "model": "tiny-base",
        "split": "train",
        "tasks": 4,
        "max_steps": 3,
        "max_tokens": 16,
        "out": str(tmp_path / "run"),
    }
    document["engine"] = {"name": "local", "device": "cpu"}
    document["prompt"] |= {"wording": "terse", "style": "bare", "admissible": False}
    document["schedule"] |= {"iterations": 1, "groups": 2, "group_size": 2, "minibatches": 1}
    document["evaluation"] |= {"split": "unseen", "tasks": 1, "every": 0}
    if "policies" in document:
        document["policies"] = {"analyzer": {"model": "tiny-base", "engine": {"name": "local", "device": "cpu"}}}
        document["method"]["analyzer_tokens"] = 32
    file: Path = tmp_path / "settings.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    assert main(["train", "--config", str(file)]) == 0, capsys.readouterr().err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    metrics = {key: value for line in lines for key, value in line.items()}
    assert "loss" in metrics and ("skill_shift/with_skill" in metrics) == (column != "grpo")
