"""Comparison rows that are not trained, optional worlds, and extra evaluation splits."""

from __future__ import annotations

import json
import tomllib

import pytest

from tacit.cli.main import main
from tacit.comparison.pages import csv_text, markdown
from tacit.comparison.plan import Plan, make_plan
from tacit.config.checks import prepare
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError

RULES = """
name = "rules"
seeds = [0, 1]
thresholds = [0.5]

[common]
model = "tiny"
tiny = { layers = 1 }
tasks = 8
engine.device = "cpu"
[common.method]
wording = "terse"
[common.evaluation]
tasks = 6
also = "train:4"
[common.schedule]
iterations = 3
groups = 2

[worlds.kitchen]
world = "cooking"
max_steps = 30
[worlds.kitchen.start]
method = "constant_context"
sft.steps = 5

[methods.reader]
plays = "reader"

[methods.reader-text]
plays = "reader"
block = "text"

[methods.explorer]
plays = "expert"
"""
LEARNED = """
[methods.learned]
name = "constant_context"
[methods.trained]
name = "constant_context"
block = "text"
"""


def plan_of(text: str) -> Plan:
    return make_plan(tomllib.loads(text))


def test_untrained_row_is_evaluated_on_the_same_panel_without_a_start():
    plan = plan_of(RULES + LEARNED)
    by_method = {cell.method: cell for cell in plan.cells}
    reader, learned = by_method["reader-text"], by_method["learned"]
    assert not reader.learns and reader.document["model"] == "reader" and "tiny" not in reader.document
    assert reader.document["sft"]["steps"] == reader.document["schedule"]["iterations"] == 0 and reader.starts_from == ""
    assert reader.document["evaluation"] == {**learned.document["evaluation"], "untrained": True}
    assert (reader.document["prompt"]["block"], reader.document["prompt"]["wording"]) == ("text", "terse")
    assert learned.learns and learned.starts_from and by_method["explorer"].document["model"] == "expert"
    prepare(Recipe.from_json(reader.document))


def test_untrained_row_is_compared_only_by_its_prompt_settings():
    plan = plan_of(RULES + LEARNED)
    (block,) = plan.differences["kitchen"]
    assert block.setting == "block" and block.values == {
        "reader": "full", "reader-text": "text", "learned": "full", "trained": "text",
    }  # fmt: skip
    assert plan.notes == (), "nor is its budget another"


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ('plays = "expert"', 'plays = "exprt"', "unknown agent 'exprt' of method 'explorer'. Did you mean 'expert'"),
        ('block = "text"\n', 'block = "text"\nschedule.lr = 1.0\n', "'reader' is not trained"),
        ('world = "cooking"', 'world = "countdown"', "world 'countdown' has no rule agent"),
    ],
)
def test_impossible_untrained_row_is_refused(before, after, reason):
    assert before in RULES
    with pytest.raises(TacitError) as refused:
        plan_of(RULES.replace(before, after, 1))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([], "the reader cannot be trained; evaluate it with --sft.steps 0 --iterations 0"),
        (["--iterations", "0", "--world", "countdown"], "world 'countdown' has no rule agent"),
        (["--iterations", "0", "--world", "cooking,alfworld"], "belongs to one world"),
        (["--iterations", "0", "--no-evaluation.untrained"], "leaves nothing to evaluate for the reader"),
    ],
)
def test_training_a_rule_agent_is_refused(flags, reason, capsys, tmp_path):
    assert main(["train", "--model", "reader", "--world", "cooking", "--out", str(tmp_path / "run"), *flags]) == 2
    assert reason in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_optional_world_without_data_is_skipped_with_a_note(monkeypatch, tmp_path):
    text = RULES + '[worlds.published]\nworld = "alfworld"\noptional = true\nevaluation.split = "valid_seen"\n'
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    plan = plan_of(text)
    assert plan.worlds == ("kitchen",) and len(plan.cells) == 6
    (note,) = plan.notes
    assert note.startswith("published is skipped, its data is missing: published ALFWorld games not found: set ALF")
    assert plan_of(text.replace('"valid_seen"', '"unseen"')).worlds == ("kitchen", "published"), "these are at hand everywhere"
    with pytest.raises(TacitError, match="unknown world 'alfwrld'"):
        plan_of(text.replace('"alfworld"', '"alfwrld"'))


@pytest.mark.slow
def test_comparison_of_rule_agents_resumes_after_a_kill(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    file, out = tmp_path / "rules.toml", tmp_path / "out"
    file.write_text(RULES.replace('[worlds.kitchen.start]\nmethod = "constant_context"\nsft.steps = 5\n', ""))
    compare = ["compare", str(file), "--out", str(out), "--jobs", "2"]
    assert main([*compare, "--only", "reader/0,explorer"]) == 0
    killed = out / "runs/kitchen/explorer/1"  # as if killed: the run was started and its summary is missing
    before = json.loads((killed / "summary.json").read_text())
    (killed / "summary.json").unlink()
    capsys.readouterr()
    assert main(compare) == 0
    printed = capsys.readouterr().out
    assert "kitchen/explorer/1 resumes" in printed and "kitchen/reader/0 begins" not in printed
    assert "final, train" in printed and "the reader plays" in printed
    found = json.loads((out / "comparison.json").read_text())
    assert found["complete"] and found["further"] == {"kitchen": ["cooking/train/4"]}
    again = next(c for c in found["cells"] if (c["method"], c["seed"]) == ("explorer", 1))
    assert again["final"]["outcomes"] == before["final"]["outcomes"] and again["start"] is again["peak"] is None
    rows = {r["method"]: r for r in found["table"]}
    assert rows["reader"]["final"]["mean"] == rows["reader"]["further"]["cooking/train/4"]["final"]["mean"] == 1.0
    assert rows["reader"]["start"] is None and rows["reader"]["steps_to"][0]["of"] == 0
    text = markdown(found)
    assert "| final, train" in text and "final cooking/train/4 low" in csv_text(found).splitlines()[0]
    assert main(["eval", str(killed)]) == 2 and "evaluated the expert, which has no weights" in capsys.readouterr().err
    assert main(["report", str(out), "--runs"]) == 0
