"""Comparison plans: which runs a file defines, and what is refused before anything runs."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from small_comparison import SMALL

from tacit.comparison.plan import Plan, make_plan, merge
from tacit.comparison.run import check_stored
from tacit.core.errors import TacitError


def plan_of(text: str) -> Plan:
    return make_plan(tomllib.loads(text))


@pytest.fixture(scope="module")
def small() -> Plan:
    return plan_of(SMALL)


def cell(plan: Plan, label: str):
    return next(c for c in plan.cells if c.label == label)


def test_every_method_world_and_seed_is_one_run_ordered_by_seed(small):
    assert len(small.cells) == 18 and small.methods[0] == "grpo"
    assert [c.label for c in small.cells[:7]] == [
        "same/grpo/0", "same/plain/0", "same/ppo/0", "next/grpo/0", "next/plain/0", "next/ppo/0", "same/grpo/1",
    ]  # fmt: skip
    assert cell(small, "next/ppo/2").document["seed"] == 2
    assert cell(small, "next/ppo/2").subdirectory == Path("runs/next/ppo/2")


def test_more_specific_settings_win():
    text = SMALL + "\n[worlds.next.methods.plain]\nkl = 0.5\n[worlds.next.schedule]\ngroups = 6\n[common.method]\nkl = 0.2\n"
    plan = plan_of(text)
    assert cell(plan, "same/grpo/0").document["method"]["kl"] == 0.2
    assert cell(plan, "same/plain/0").document["method"]["kl"] == 0.0
    assert cell(plan, "next/plain/0").document["method"]["kl"] == 0.5
    assert cell(plan, "next/ppo/0").document["schedule"] | {"lr": 0} == {
        **cell(plan, "same/ppo/0").document["schedule"], "groups": 6, "lr": 0,
    }  # fmt: skip
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}}


def test_shared_start_imitates_once_and_runs_continue_from_it(small, tmp_path):
    (start,) = small.starts
    assert start.document["sft"]["steps"] == 50 and start.iterations == 0 and start.subdirectory == Path("runs/same/start")
    began = cell(small, "same/ppo/1")
    document = began.with_start(tmp_path)
    assert document["model"] == str(tmp_path / "runs/same/start/checkpoints/sft-000050/policy")
    assert "tiny" not in document and document["sft"]["steps"] == 0 and document["evaluation"]["untrained"] is False
    assert document["engine"]["value_head"] is True
    # Default prompt settings of a tiny policy also apply to runs that continue from its start.
    prompt = {"wording": "terse", "style": "bare", "admissible": False}
    assert prompt.items() <= document["prompt"].items() and prompt.items() <= start.document["prompt"].items()
    alone = cell(small, "next/ppo/1").with_start(tmp_path)
    assert alone["model"] == "tiny" and alone["sft"]["steps"] == 50 and "tiny" in alone


def test_runs_inherit_prompt_settings_of_their_start():
    plan = plan_of(SMALL + "\n[worlds.same.start.method]\nhistory = 0\n[methods.long]\nname = 'grpo'\nhistory = 3\n")
    histories = {c.method: c.document["prompt"]["history"] for c in plan.cells if c.world == "same"}
    assert histories == {"grpo": 0, "plain": 0, "ppo": 0, "long": 3}
    assert cell(plan, "next/grpo/0").document["prompt"]["history"] is None, "the world's own"
    talk = plan_of(SMALL + "\n[worlds.same.start.method]\nchat = true\n")
    assert {c.document["prompt"]["chat"] for c in talk.cells if c.world == "same"} == {True}, "a conversation goes on as one"


def test_common_method_settings_apply_to_methods_that_have_them():
    plan = plan_of(SMALL + "\n[common.method]\nlam = 0.5\n")
    assert cell(plan, "same/ppo/0").document["method"]["lam"] == 0.5
    assert "lam" not in cell(plan, "same/grpo/0").document["method"]


def test_example_in_the_guide_can_be_planned():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "compare_methods.md").read_text()
    plan = plan_of(page.split("```toml\n")[1].split("```")[0])
    assert plan.name == "step-credit" and plan.methods == ("grpo", "gigpo", "bipace-ngram") and len(plan.cells) == 30
    assert cell(plan, "puzzles/bipace-ngram/4").document["method"]["embedder"] == "ngram"
    assert cell(plan, "kitchen/gigpo/0").document["method"]["step_weight"] == 0.5


def test_different_budgets_are_noted():
    plan = plan_of(SMALL + "\n[methods.more]\nname = 'grpo'\nschedule.group_size = 8\n")
    assert (
        plan.notes[0].startswith("budgets differ in same: grpo trains on 64 episodes") and "more trains on 128" in plan.notes[0]
    )
    assert plan_of(SMALL).notes == ()


REFUSED = {
    "no seeds": ("seeds = [0, 1, 2]", "", "seeds must be a list of whole numbers"),
    "empty seeds": ("seeds = [0, 1, 2]", "seeds = []", "seeds must be a list"),
    "a seed twice": ("seeds = [0, 1, 2]", "seeds = [0, 0]", "names a seed twice"),
    "unknown top key": ("seeds =", "seed = 1\nseeds =", "unknown key 'seed'. Did you mean 'seeds'"),
    "unknown method": ("[methods.plain]\nname = \"grpo\"", "[methods.plain]\nname = 'gppo'", "unknown method 'gppo'"),
    "unknown world": (f"world = \"{SMALL.split('world = ')[1].split(':')[0][1:]}:SAME\"", "", "unknown world 'same'"),
    "unknown method setting": ("std = \"none\"", "stdd = 'none'", "same/plain: unknown key `stdd`"),
    "unknown common setting": ("tasks = 64\ncheck", "taks = 64\ncheck", "unknown key `taks`"),
    "setting no method has": ("[methods.grpo]", "[common.method]\nhistori = 1\n[methods.grpo]", "Did you mean 'history'"),
    "bad threshold": ("thresholds = [0.2, 0.9]", "thresholds = [20]", "thresholds must be"),
    "own panel": ("[methods.grpo]", "[methods.grpo]\nevaluation.tasks = 3", "which all methods of a world share"),
    "own seed": ("[common]", "[common]\nseed = 3", "which the comparison sets for every run"),
    "bad value": ("group_size = 4", "group_size = 1", "group_size = 1"),
    "start as a method": ("[methods.grpo]", "[methods.start]", "cannot be named 'start'"),
    "bad name": ("[methods.grpo]", "[methods.\"a/b\"]", "becomes a directory"),
    "start with adapters": (".start.sft]", ".start.engine]\nlora_rank = 4\n[worlds.same.start.sft]", "LoRA"),
    "start without lessons": ("steps = 50\nbatch", "steps = 0\nbatch", "same/start: sft.steps and iterations are both 0"),
    "start with epochs": ("steps = 50\nbatch", "steps = 0\nepochs = 2\nbatch", "start] has sft.epochs = 2; use sft.steps"),
    "wandb": ("[common]", "[common]\nwandb = 'project'", "wandb"),
    "method of another file": ("[methods.grpo]", "[worlds.next.methods.gpro]\n[methods.grpo]", "Did you mean 'grpo'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_comparison_is_refused_with_the_reason(case):
    before, after, reason = REFUSED[case]
    assert before in SMALL
    with pytest.raises(TacitError) as refused:
        plan_of(SMALL.replace(before, after, 1))
    assert reason in str(refused.value)


@pytest.mark.parametrize("kind", ["worlds", "methods"])
def test_file_without_methods_or_worlds_is_refused(kind):
    document = {key: value for key, value in tomllib.loads(SMALL).items() if key != kind}
    with pytest.raises(TacitError, match=f"has no {kind}"):
        make_plan(document)


def test_choose_selects_runs_by_world_method_and_seed(small):
    assert len(small.choose("")) == 18
    assert {c.world for c in small.choose("next")} == {"next"} and len(small.choose("next")) == 9
    assert [(c.world, c.seed) for c in small.choose("next/*/1")] == [("next", 1)] * 3 and len(small.choose("*/1")) == 6
    assert [c.label for c in small.choose("same/ppo, next/grpo/1")] == [
        "same/ppo/0",
        "same/ppo/1",
        "next/grpo/1",
        "same/ppo/2",
    ]
    assert [c.label for c in small.choose("ppo/1")] == ["same/ppo/1", "next/ppo/1"]
    with pytest.raises(TacitError, match="Did you mean 'plain'"):
        small.choose("plan")


def test_run_stored_with_other_settings_is_refused(small, tmp_path):
    from tacit.runs.files import write_json

    run = cell(small, "next/grpo/0")
    path = tmp_path / run.subdirectory
    path.mkdir(parents=True)
    write_json(path / "settings.json", {**run.with_start(tmp_path), "out": "elsewhere"})
    check_stored(small, tmp_path)
    older = run.with_start(tmp_path)
    older["evaluation"] = {key: value for key, value in older["evaluation"].items() if key != "top_k"}
    write_json(path / "settings.json", older)  # as written before the setting existed: it has its default
    check_stored(small, tmp_path)
    write_json(path / "settings.json", merge(run.with_start(tmp_path), {"schedule": {"lr": 1.0, "iterations": 1}}))
    with pytest.raises(TacitError, match=r"other settings .*schedule.lr=0.003\)"):
        check_stored(small, tmp_path)
