"""Every packaged recipe is accepted by the parser of its command, and published recipes match their papers."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tacit.cli import compare
from tacit.cli.eval import make_parser as eval_parser
from tacit.cli.terminal import peek_method
from tacit.comparison.plan import Plan, PlannedRun, make_plan
from tacit.config.checks import AGENTS, open_world, prepare
from tacit.config.recipe import FOLDER, Recipe, packaged, read_document, run_recipe
from tacit.engines.models.bases import BASES
from tacit.engines.models.tiny import TINY_SIZES
from tacit.modules.training import choose_skills

RECIPES = FOLDER
FILES = sorted(path for path in RECIPES.rglob("*") if path.is_file())
COMPARISONS, RUNS, SCRIPTS = ([r.path for r in packaged() if r.kind == kind] for kind in ("comparison", "run", "script"))
PUBLISHED = [file for file in FILES if file.parent.name == "published"]

COMMAND = re.compile(r"^(?:#\s+|[ ]+)?(?:\w+=…? ?)?(tacit (?:train|compare|eval|modules) .+?)(?: \(.*)?$", re.MULTILINE)


def named(path: Path) -> str:
    return str(path.relative_to(RECIPES))


def commands(file: Path) -> list[str]:
    return COMMAND.findall(file.read_text(encoding="utf-8").replace("\\\n#", ""))


@cache
def plan_of(name: str) -> Plan:
    return make_plan(read_document(RECIPES / name), Path(name).stem)


def cell(name: str, method: str, world: str = "alfworld") -> dict[str, Any]:
    """The document of one world × method. Seeds differ in nothing else."""
    found: PlannedRun = next(c for c in plan_of(name).cells if (c.world, c.method) == (world, method))
    return found.document


def test_every_file_is_a_comparison_run_or_script():
    assert len(COMPARISONS) >= 10 and RUNS and SCRIPTS
    assert sorted([*COMPARISONS, *RUNS, *SCRIPTS]) == FILES


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("file", COMPARISONS, ids=named)
def test_comparison_can_be_planned(file):
    plan = plan_of(named(file))
    assert len(plan.cells) == len(plan.seeds) * len(plan.worlds) * len(plan.methods)
    assert plan.name == file.stem


@pytest.mark.parametrize("file", RUNS, ids=named)
def test_run_can_be_prepared(file):
    recipe = Recipe.resolve(file, {})
    method = prepare(recipe).methods[0]
    assert method.schedule == recipe.schedule


@pytest.mark.parametrize("name", ["quickstart.toml", "household-modules.toml", "published/constant-context-table1.toml"])
def test_module_can_be_trained_for_every_skill(name):
    recipe = Recipe.resolve(RECIPES / name, {})
    world = open_world(recipe.world)
    skills = choose_skills(world, "all")
    assert not recipe.train.families and len(skills) == 5  # the module's skill sets the families
    for families in skills.values():
        prepare(replace(recipe, train=replace(recipe.train, families=",".join(families))))


@pytest.mark.parametrize("name", ["shop.toml", "published/constant-context-table1-webshop.toml"])
def test_one_module_serves_all_shop_families(name):
    recipe = Recipe.resolve(RECIPES / name, {})
    world = open_world(recipe.world)
    (families,) = choose_skills(world, "all").values()
    assert families == world.families
    prepare(replace(recipe, train=replace(recipe.train, families=",".join(families))))


@pytest.mark.parametrize("file", SCRIPTS, ids=named)
def test_script_contains_commands(file):
    assert len(commands(file)) >= 2


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("file", PUBLISHED, ids=named)
def test_commands_named_in_a_published_recipe_are_valid(file):
    found = commands(file)
    assert found, "it does not say how it is run"
    for command in found:
        _, verb, *words = shlex.split(command)
        if verb == "eval":
            arguments, _ = eval_parser(peek_method(words, "eval")).parse(words)
            assert arguments.target
        elif verb == "compare":
            arguments, _ = compare.make_parser().parse(words)
            assert plan_of(named(arguments.file)).choose(arguments.only)
        else:
            assert run_recipe(words[words.index("--config") + 1])


LAPTOP = [f for f in COMPARISONS if f.parent.name == "comparisons" and 'device = "cuda"' not in f.read_text(encoding="utf-8")]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("file", LAPTOP, ids=named)
def test_laptop_comparisons_need_no_gpu_and_no_download(file):
    optional = {world: table.get("optional") for world, table in read_document(file)["worlds"].items()}
    for planned in plan_of(named(file)).cells:
        assert planned.document["engine"]["device"] == "cpu"
        assert planned.document["model"] in (*BASES, *TINY_SIZES, *AGENTS)
        assert planned.document["split"] == "train" or optional.get(planned.world)
        assert planned.document["prompt"]["wording"] == "terse"


# Values stated in the papers


def test_bipace_table_4_has_three_seeds_per_row_and_one_per_radius():
    name = "published/bipace-table4.toml"
    (command_line,) = (command for command in commands(RECIPES / name) if "compare" in command)
    chosen = plan_of(name).choose(shlex.split(command_line)[-1])
    assert len(chosen) == 3 * 3 + 3  # three seeds of three rows, one of each other radius


def test_bipace_table_l1_rows_differ_only_as_named():
    """The variants differ only in what the table's names say."""
    name = "published/bipace-table-l1.toml"
    rows = {row: cell(name, row)["method"] for row in plan_of(name).methods}
    variants = {row: (method.get("estimator"), method.get("action_key"), method["embedder"]) for row, method in rows.items()}
    assert variants == {
        "state-only": (None, None, "actor"),
        "first-token": ("difference", "tokens", "actor"),
        "action-tag": ("difference", "tag", "actor"),
        "q-style": ("q", "tag", "actor"),
        "identity": ("q", "tag", "identity"),
    }
    assert {method["epsilon"] for row, method in rows.items() if row != "identity"} == {0.10}
    assert rows["identity"]["epsilon"] is None or rows["identity"]["epsilon"] == 0.0
    assert {method["layer"] for method in rows.values()} == {-8} and len(plan_of(name).seeds) == 3


def table_5(document: dict[str, Any]) -> None:
    """Check the settings of Constant Context, Table 5."""
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
    assert recipe.train.sft.epochs == 3 and not recipe.train.sft.steps


def test_constant_context_table_2():
    calls = [shlex.split(command)[2:] for command in commands(RECIPES / "published/constant-context-table2.sh")]
    calls = [words for words in calls if "--split" in words]
    panels = [words[words.index("--split") + 1] + "/" + words[words.index("--tasks") + 1] for words in calls]
    assert panels == [
        *["valid_seen/140", "valid_unseen/134"] * 3,
        *["published_test/500"] * 3,
        *["eto_dev/194", "eto_test/211"] * 3,
    ]
    assert all(words[words.index("--temperature") + 1] == "0" for words in calls)
    assert all(words[words.index("--seed") + 1] == "42" for words in calls)
    assert [words[words.index("--history") + 1] for words in calls if "--history" in words] == [
        *("1", "1", "-1", "-1"), *("1", "-1"), *("1", "1", "-1", "-1"),
    ]  # fmt: skip
    react = [words for words in calls if "--tokens" not in words]
    assert all(words[words.index("--max-tokens") + 1] == "64" for words in react), "Table 5: max new tokens, ReAct's too"


def test_constant_context_table_1_in_scienceworld(shared_data, monkeypatch):
    """Five families use imitation, four of them also RL, with ETO's step limits and the reward of Table 6."""
    monkeypatch.setenv("SCIENCEWORLD_ETO", str(shared_data / "scienceworld"))
    recipe = Recipe.resolve(RECIPES / "published/constant-context-table1-scienceworld.toml", {})
    calls = [shlex.split(each) for each in commands(RECIPES / "published/constant-context-table1-scienceworld.toml")]
    trained = [words[words.index("--families") + 1].split(",") for words in calls if "--families" in words]
    world = open_world("scienceworld")
    assert sorted(name for names in trained for name in names) == sorted(world.families[:9]) and len(trained) == 5
    tasks = world.tasks_of("eto_train", 1483, 42)
    assert all(0 < task.data["max_steps"] <= recipe.train.max_steps == 120 for task in tasks)
    low = {names[0]: words for names, words in zip(trained, calls, strict=False) if len(names) == 1}
    for family, words in low.items():
        games = int(words[words.index("--iterations") + 1]) if "--iterations" in words else recipe.schedule.iterations
        assert games == sum(task.family == family for task in tasks), "one RL epoch"


def test_constant_context_figure_4():
    calls = [shlex.split(command) for command in commands(RECIPES / "published/constant-context-figure4.sh")]
    calls = [words for words in calls if "train" in words]
    assert [int(words[words.index("--sft.tasks") + 1]) for words in calls] == [5, 25, 100, 250, 500, 1000, 1571]
    assert all(words[words.index("--iterations") + 1] == "0" for words in calls), "imitation alone"
    assert all(words[words.index("--evaluation.tasks") + 1] == "100" for words in calls)


@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("published/constant-context-table3.toml", "alfworld"),
        ("published/constant-context-table3-webshop.toml", "webshop"),
        ("comparisons/ablation.toml", "household"),
    ],
)
def test_constant_context_table_3_ablates_one_component_at_a_time(name, world):

    def settings_of(method):
        document = cell(name, method, world)
        return {**document["prompt"], **document["method"]}

    whole = settings_of("whole")
    others = [method for method in plan_of(name).methods if method != "whole"]
    settings = {method: settings_of(method) for method in others}
    differs = {method: {key: value for key, value in own.items() if value != whole[key]} for method, own in settings.items()}
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


def test_cooking_has_a_world_with_and_without_state_block():
    plan = plan_of("comparisons/reuse.toml")
    by_world = {world: [c.document for c in plan.cells if c.world == world] for world in ("cooking", "cooking-without-block")}
    assert {d["world"] for documents in by_world.values() for d in documents} == {"cooking"}
    read = {world: {(d["prompt"]["state_block"], d["prompt"]["history"]) for d in by_world[world]} for world in by_world}
    assert read == {"cooking": {(True, 1)}, "cooking-without-block": {(False, 4)}}
    start = next(s for s in plan.starts if s.world == "cooking-without-block").document["prompt"]
    assert (start["state_block"], start["history"]) == (False, 4)  # imitation uses the context of the run


def test_demonstration_columns_differ_only_in_their_number():
    name = "comparisons/demonstrations.toml"
    plan = plan_of(name)
    counts = {method: cell(name, method, "household")["sft"]["tasks"] for method in plan.methods}
    assert counts == {f"d{count}": count for count in (6, 12, 24, 48, 96, 192, 384, 960)}
    rest = [{k: v for k, v in cell(name, method, "household").items() if k != "sft"} for method in plan.methods]
    assert all(document == rest[0] for document in rest)


def test_laptop_radii_have_the_papers_proportions():
    name = "comparisons/radius.toml"
    radii = [cell(name, m, "household")["method"]["epsilon"] for m in ("radius-half", "actor", "radius-more", "radius-twice")]
    assert [round(radius / radii[1], 6) for radius in radii] == [0.5, 1.0, 1.5, 2.0]
    calibrated = cell("comparisons/step-credit.toml", "bipace", "household")["method"]
    assert {key: cell(name, "actor", "household")["method"][key] for key in ("layer", "pooling")} == {
        key: calibrated[key] for key in ("layer", "pooling")
    }
