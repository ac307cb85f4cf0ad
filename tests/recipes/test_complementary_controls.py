"""The comparisons of Complementary RL with its controls load, and every column trains on a CPU."""

from __future__ import annotations

import json

import pytest

import tacit
from tacit.comparison.plan import make_plan
from tacit.config.recipe import Recipe, find_recipe, read_document
from tacit.runs.directory import read_summary

COLUMNS = {
    "grpo-8x8": (8, ""),
    "grpo-8x4": (4, ""),
    "static": (8, "static"),
    "trained": (8, "trained"),
    "shuffled": (8, "trained"),
}
TINY = {
    "model": "tiny", "tasks": 4, "max_steps": 2, "max_tokens": 8, "iterations": 1, "groups": 1, "quiet": True,
    "sft": {"steps": 0}, "evaluation": {"tasks": 1, "every": 0, "untrained": False, "max_steps": 1},
    "chat": False, "style": "tags",
    "engine": {"device": "cpu", "threads": 1, "lora_rank": 0, "token_budget": 0},
    "tiny": {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", ["complementary-qwen-gpu", "complementary-errands"])
def test_columns_differ_only_in_what_they_compare(name):
    plan = make_plan(read_document(find_recipe(name, "comparison")))
    cells = {cell.method: cell.document for cell in plan.cells}
    assert {m: (d["schedule"]["group_size"], d["method"].get("extraction", "")) for m, d in cells.items()} == COLUMNS
    assert {m for m, d in cells.items() if d["method"].get("retrieval") == "shuffled"} == {"shuffled"}
    assert len(plan.seeds) >= 2 and all(d["schedule"]["iterations"] >= 40 for d in cells.values())
    assert all(d["method"].get("capacity", 1000) == 1000 for d in cells.values())
    evaluations = {d["schedule"]["iterations"] // d["evaluation"]["every"] for d in cells.values()}
    assert evaluations == {plan.outcome}, "the outcome is the mean over all evaluations, not the last one"
    free = {d["schedule"]["group_size"] * (1 - d["method"].get("guided", 0.0)) for d in cells.values()}
    assert free == {4, 8}, "four note-free episodes of an errand, and the control of eight"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["complementary-qwen-gpu", "complementary-errands"])
@pytest.mark.parametrize("column", COLUMNS)
def test_column_trains_for_one_iteration(name, column, tmp_path):
    plan = make_plan(read_document(find_recipe(name, "comparison")))
    document = next(cell.document for cell in plan.cells if cell.method == column)
    file = tmp_path / "cell.json"
    file.write_text(json.dumps(Recipe.from_json({**document, "out": str(tmp_path / "run")}).to_json()))
    short = {"extractor": {"tokens": 8}} if "extractor" in document["method"] else {}
    run = tacit.train(config=file, **TINY, **short)
    assert read_summary(run.path)["iterations"] == 1
