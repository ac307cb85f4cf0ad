"""Every recipe of the package is understood by the parser that would read it; published ones say what the papers say."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tacit.assembly.checks import check_training, open_world
from tacit.assembly.recipe import Recipe, read_document
from tacit.assembly.recipes import FOLDER, packaged, run_recipe
from tacit.cli import compare
from tacit.cli.evaluation.evaluate import glance_method
from tacit.cli.evaluation.evaluate import make_parser as eval_parser
from tacit.cli.modules.train import choose_skills
from tacit.comparison.plan import Plan, Planned, make_plan
from tacit.engines.models.bases import BASES
from tacit.engines.models.tiny import TINY_SIZES

RECIPES = FOLDER
FILES = sorted(path for path in RECIPES.rglob("*") if path.is_file())
COMPARISONS, RUNS, SCRIPTS = ([r.path for r in packaged() if r.kind == kind] for kind in ("comparison", "run", "script"))
PUBLISHED = [file for file in FILES if file.parent.name == "published"]

COMMAND = re.compile(r"^(?:#\s+)?(?:\w+=…? ?)?(tacit (?:train|compare|eval|modules) .+?)(?: \(.*)?$", re.MULTILINE)


def named(path: Path) -> str:
    return str(path.relative_to(RECIPES))


def commands(file: Path) -> list[str]:
    return COMMAND.findall(file.read_text(encoding="utf-8").replace("\\\n#", ""))


@cache
def plan_of(name: str) -> Plan:
    return make_plan(read_document(RECIPES / name), compare.resolve, Path(name).stem)


def cell(name: str, method: str, world: str = "alfworld") -> dict[str, Any]:
    """The document of one world × method; seeds differ in nothing else."""
    found: Planned = next(c for c in plan_of(name).cells if (c.world, c.method) == (world, method))
    return found.document


def test_every_file_is_one_of_three_kinds():
    assert len(COMPARISONS) >= 10 and RUNS and SCRIPTS
    assert sorted([*COMPARISONS, *RUNS, *SCRIPTS]) == FILES


@pytest.mark.parametrize("file", COMPARISONS, ids=named)
def test_a_comparison_can_be_planned(file):
    plan = plan_of(named(file))
    assert len(plan.cells) == len(plan.seeds) * len(plan.worlds) * len(plan.methods)
    assert plan.name == file.stem


@pytest.mark.parametrize("file", RUNS, ids=named)
def test_a_run_can_be_started(file):
    recipe = Recipe.resolve(file, {})
    _, method = check_training(recipe, open_world(recipe.world))
    assert method.schedule == recipe.schedule


@pytest.mark.parametrize("name", ["quickstart.toml", "household-modules.toml", "published/constant-context-table1.toml"])
def test_a_module_can_be_trained_for_every_skill(name):
    recipe = Recipe.resolve(RECIPES / name, {})
    world = open_world(recipe.world)
    skills = choose_skills(world, "all")
    assert not recipe.train.families and len(skills) == 5  # a module's skill decides its families
    for families in skills.values():
        check_training(replace(recipe, train=replace(recipe.train, families=",".join(families))), world)


@pytest.mark.parametrize("file", SCRIPTS, ids=named)
def test_a_script_has_commands(file):
    assert len(commands(file)) >= 2


@pytest.mark.parametrize("file", PUBLISHED, ids=named)
def test_commands_and_files_that_a_published_recipe_names_are_there(file):
    found = commands(file)
    assert found, "it does not say how it is run"
    for command in found:
        _, verb, *words = shlex.split(command)
        if verb == "eval":
            arguments, _ = eval_parser(glance_method(words, "eval")).parse(words)
            assert arguments.target
        elif verb == "compare":
            arguments, _ = compare.make_parser().parse(words)
            assert compare.choose(plan_of(named(arguments.file)), arguments.only)
        else:
            assert run_recipe(words[words.index("--config") + 1])


@pytest.mark.parametrize("file", [f for f in COMPARISONS if f.parent.name == "comparisons" and "gpu" not in f.stem], ids=named)
def test_laptop_versions_need_no_gpu_and_no_download(file):
    for planned in plan_of(named(file)).cells:
        assert planned.document["engine"]["device"] == "cpu"
        assert planned.document["model"] in (*BASES, *TINY_SIZES)
        assert planned.document["split"] == "train"
        assert planned.document["method"]["wording"] == "terse"


# What the papers state


@pytest.mark.parametrize("world", ["alfworld", "cooking", "countdown"])
def test_reuserl_table_1(world):
    name = "published/reuserl-table1.toml"
    for method in ("grpo", "round_length", "reuserl", "reuserl-batch"):
        document = cell(name, method, world)
        assert document["schedule"]["iterations"] == 300
        assert document["method"]["success_reward"] == 10.0 and document["method"]["invalid_penalty"] == 0.01
        assert document["max_steps"] == 0  # the worlds' own limits are the paper's T
    assert open_world(world).max_steps == {"alfworld": 50, "cooking": 40, "countdown": 30}[world]
    reuserl, batch = cell(name, "reuserl", world)["method"], cell(name, "reuserl-batch", world)["method"]
    assert reuserl["efficiency"] == cell(name, "round_length", world)["method"]["efficiency"] == 10.0
    assert (reuserl["buffer"], batch["buffer"]) == (256, 0)


def test_reuserl_models_and_panels():
    name = "published/reuserl-table1.toml"
    told = {world: cell(name, "grpo", world) for world in ("alfworld", "cooking", "countdown")}
    assert told["alfworld"]["model"] == told["countdown"]["model"] == "Qwen/Qwen2.5-1.5B-Instruct"
    assert told["cooking"]["model"] == "Qwen/Qwen3-1.7B"
    panels = {world: (d["evaluation"]["split"], d["evaluation"]["tasks"]) for world, d in told.items()}
    assert panels == {"alfworld": ("valid_seen", 140), "cooking": ("test", 1000), "countdown": ("test", 1024)}
    sampling = {w: tuple(d["evaluation"][key] for key in ("temperature", "top_p", "top_k")) for w, d in told.items()}
    assert sampling == {"alfworld": (0.4, 1.0, 0), "cooking": (0.7, 0.8, 20), "countdown": (0.4, 1.0, 0)}
    assert len(plan_of(name).seeds) == 3


@pytest.mark.parametrize(
    ("size", "model", "iterations", "layer", "epsilon"),
    [("7b", "Qwen/Qwen2.5-7B-Instruct", 150, -8, 0.10), ("1.5b", "Qwen/Qwen2.5-1.5B-Instruct", 200, -12, 0.05)],
)
def test_bipace_table_2(size, model, iterations, layer, epsilon):
    name = f"published/bipace-table2-{size}.toml"
    document = cell(name, "bipace")
    assert (document["model"], document["schedule"]["iterations"]) == (model, iterations)
    assert document["schedule"]["lr"] == 5e-7
    told = document["method"]
    assert (told["layer"], told["pooling"], told["epsilon"]) == (layer, "last", epsilon)
    assert (told["kl"], told["gamma"], told["step_weight"], told["key_tokens"]) == (0.01, 0.95, 1.0, 8)
    assert (told["estimator"], told["action_key"]) == ("q", "tag")
    assert (document["evaluation"]["tasks"], document["evaluation"]["every"]) == (128, 5)
    assert len(plan_of(name).seeds) == 3
    for baseline in ("grpo", "gigpo", "hgpo"):
        assert cell(name, baseline)["schedule"]["lr"] == 1e-6 and cell(name, baseline)["schedule"]["iterations"] == 150


def test_bipace_table_4():
    name = "published/bipace-table4.toml"
    radii = {method: cell(name, method)["method"]["epsilon"] for method in plan_of(name).methods if method != "bigpo"}
    assert radii == {"actor": 0.10, "ngram": 0.25, "radius-0.05": 0.05, "radius-0.15": 0.15, "radius-0.20": 0.20}
    assert {cell(name, method)["method"].get("estimator", "q") for method in radii} == {"q"}
    assert cell(name, "ngram")["method"]["embedder"] == "ngram"
    (wanted,) = (command for command in commands(RECIPES / name) if "compare" in command)
    chosen = compare.choose(plan_of(name), shlex.split(wanted)[-1])
    assert len(chosen) == 3 * 3 + 3  # three seeds of three rows, one of each other radius


def table_5(document: dict[str, Any]) -> None:
    """Settings of constant context's Table 5."""
    method, schedule, evaluation = document["method"], document["schedule"], document["evaluation"]
    assert document["model"] == "Qwen/Qwen3-8B" and document["max_steps"] == 30 and document["max_tokens"] == 64
    assert {key: document["engine"][key] for key in ("lora_rank", "lora_alpha", "lora_dropout", "clip_norm")} == {
        "lora_rank": 64,
        "lora_alpha": 128.0,
        "lora_dropout": 0.05,
        "clip_norm": 1.0,
    }
    assert set(document["engine"]["lora_targets"]) == {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
    assert (document["sft"]["lr"], document["sft"]["batch"], document["sft"]["warmup"]) == (2e-4, 16, 0.1)
    assert (schedule["group_size"], schedule["temperature"], schedule["top_p"], schedule["lr"]) == (4, 0.8, 0.95, 5e-6)
    assert (method["gamma"], method["kl"], method["success_reward"], method["step_cost"]) == (0.98, 0.02, 3.0, 0.01)
    assert (evaluation["temperature"], evaluation["top_p"], evaluation["tasks"], evaluation["repeats"]) == (0.4, 0.95, 140, 3)


def test_constant_context_table_1():
    file = RECIPES / "published/constant-context-table1.toml"
    recipe = Recipe.resolve(file, {})
    table_5(recipe.to_json())
    world = open_world(recipe.world)
    skills = choose_skills(world, "all")
    assert recipe.train.seed == 42 and len(skills) == 5
    assert recipe.schedule.iterations * recipe.schedule.groups == 200  # train games for each family
    assert recipe.train.sft.steps == round(3 * 36702 / 16 / len(skills))


def test_constant_context_table_2():
    told = [shlex.split(command)[2:] for command in commands(RECIPES / "published/constant-context-table2.sh")]
    told = [words for words in told if "--split" in words]
    panels = [words[words.index("--split") + 1] + "/" + words[words.index("--tasks") + 1] for words in told]
    assert panels == ["valid_seen/140", "valid_unseen/134"] * 3
    assert all(words[words.index("--temperature") + 1] == "0" for words in told)
    assert all(words[words.index("--seed") + 1] == "42" for words in told)
    assert [words[words.index("--history") + 1] for words in told if "--history" in words] == ["1", "1", "-1", "-1"]
    assert ["--tokens" in words for words in told] == [True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("name", "world"),
    [("published/constant-context-table3.toml", "alfworld"), ("comparisons/ablation.toml", "household")],
)
def test_constant_context_table_3_leaves_out_one_thing_at_a_time(name, world):
    whole = cell(name, "whole", world)["method"]
    others = [method for method in plan_of(name).methods if method != "whole"]
    told = {method: cell(name, method, world)["method"] for method in others}
    differs = {method: {key: value for key, value in own.items() if value != whole[key]} for method, own in told.items()}
    expected = {
        "no-state-block": {"state_block": False},
        "no-one-step": {"history": 0},
        "no-progress": {"without": ["progress"]},
        "no-error": {"without": ["error"]},
        "no-step-cost": {"without": ["step_cost"]},
        "outcome-only": {"without": ["progress", "error", "step_cost"]},
        "no-penalty": {"kl": 0.0},
    }
    assert differs == {method: expected[method] for method in others}
    assert {"no-state-block", "outcome-only"} <= set(others)


def test_constant_context_table_3_has_the_settings_of_table_5():
    document = cell("published/constant-context-table3.toml", "whole")
    table_5(document)
    assert document["sft"]["steps"] == round(3 * 36702 / 16) and document["schedule"]["iterations"] == 5 * 200


def test_demonstrations_differ_in_nothing_else():
    name = "comparisons/demonstrations.toml"
    plan = plan_of(name)
    shown = {method: cell(name, method, "household")["sft"]["tasks"] for method in plan.methods}
    assert shown == {f"d{count}": count for count in (6, 12, 24, 48, 96, 192, 384, 960)}
    rest = [{k: v for k, v in cell(name, method, "household").items() if k != "sft"} for method in plan.methods]
    assert all(document == rest[0] for document in rest)


def test_the_radii_on_a_laptop_are_in_the_paper_s_proportions():
    name = "comparisons/radius.toml"
    radii = [cell(name, m, "household")["method"]["epsilon"] for m in ("radius-half", "actor", "radius-more", "radius-twice")]
    assert [round(radius / radii[1], 6) for radius in radii] == [0.5, 1.0, 1.5, 2.0]
    calibrated = cell("comparisons/step-credit.toml", "bipace", "household")["method"]
    assert {key: cell(name, "actor", "household")["method"][key] for key in ("layer", "pooling", "epsilon")} == {
        key: calibrated[key] for key in ("layer", "pooling", "epsilon")
    }
