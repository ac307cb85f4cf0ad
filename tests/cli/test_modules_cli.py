"""`tacit modules`, and modules in `tacit eval` and `tacit play`."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from small_modules import RECIPE, Trained, train_modules, write_recipe

from tacit.cli.main import main
from tacit.config.recipe import Recipe, read_document
from tacit.modules import find_modules, read_module
from tacit.modules.agent import module_recipe
from tacit.modules.training import choose_skills, plan_skill_runs
from tacit.runs.directory import read_settings, read_summary
from tacit.worlds import get_environment


@pytest.fixture(scope="module")
def recipe(trained_modules: Trained) -> Path:
    return trained_modules.recipe


@pytest.fixture(scope="module")
def trained(trained_modules: Trained) -> tuple[Path, str]:
    """Two trained modules and the output of their training. Read-only."""
    return trained_modules.modules, trained_modules.output


@pytest.fixture
def copy(trained, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained[0], tmp_path / "modules"))


def test_modules_train_makes_a_run_and_a_module_per_skill(trained) -> None:
    out, output = trained
    for skill, families in (("heat", "heat"), ("pick", "pick,pick2")):
        run = out / "runs" / skill
        assert read_settings(run)["families"] == families and read_summary(run)["panel"].endswith(f"[{families}]")
        assert read_module(out / skill).digest == read_summary(run)["digest"]
        assert f"{skill}: rl-000002 exported to {out / skill}" in output
    assert output.index("after SFT") > output.index("pick: rl-000002") and f"tacit eval {out}" in output


@pytest.mark.slow
def test_repeated_modules_train_only_adds_missing_modules(trained, recipe, copy, capsys) -> None:
    before = {file: file.stat().st_mtime_ns for file in copy.rglob("*") if file.is_file() and file.name != ".lock"}
    (copy / "heat").rename(copy / ".heat.1.tmp")  # left by a process killed while writing
    assert train_modules(recipe, copy, "--skills", "heat,pick") == 0
    out = capsys.readouterr().out
    assert "heat: " in out and "is finished" in out and "imitation" not in out
    assert "heat: rl-000002 exported" in out and "pick: rl-000002 exported" not in out
    changed = [f for f, at in before.items() if f.stat().st_mtime_ns != at and f.parent != copy / "heat"]
    assert not changed and not list(copy.glob(".*.tmp"))
    assert read_module(copy / "heat").digest == read_module(trained[0] / "heat").digest


def test_damaged_module_is_exported_again(recipe, copy, capsys) -> None:
    (copy / "heat" / "adapter_model.safetensors").write_bytes(b"")
    assert train_modules(recipe, copy, "--skills", "heat") == 0
    assert "heat: rl-000002 exported" in capsys.readouterr().out and not read_module(copy / "heat").find_damage()


def test_modules_train_refuses_other_settings_but_allows_more_iterations(recipe, copy, capsys) -> None:
    assert train_modules(recipe, copy, "--skills", "heat", "--sft.steps", "9") == 2
    assert "sft.steps=9 differs from" in capsys.readouterr().err
    assert train_modules(recipe, copy, "--skills", "heat", "--iterations", "3") == 0
    assert "resuming after rl 2" in capsys.readouterr().out
    assert read_module(copy / "heat").run["checkpoint"] == "rl-000003"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--skills", "haet"], "unknown skill 'haet' of world 'alfworld'. Did you mean 'heat'?"),
        (["--skills", ","], "--skills is empty; choose from all, pick, look, clean, heat, cool, unified."),
        (["--families", "haet"], "unknown family 'haet' of world 'alfworld'. Did you mean 'heat'?"),
        (["--families", "heat", "--skills", "pick"], "--families heat: none of the skills pick serves them."),
        (["--sft.steps", "0", "--iterations", "0"], "nothing would be trained"),
        (["--resume", "x"], "unknown flag --resume"),
    ],
)
def test_modules_train_refuses_bad_arguments_before_writing(recipe, tmp_path, capsys, flags, message) -> None:
    assert train_modules(recipe, tmp_path / "new", *flags) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_modules_train_requires_out(recipe, capsys) -> None:
    assert main(["modules", "train", "--config", str(recipe)]) == 2
    assert "--out DIR" in capsys.readouterr().err


def test_skills_of_a_world() -> None:
    household, countdown = get_environment("alfworld"), get_environment("countdown")
    assert list(choose_skills(household, "all")) == ["pick", "look", "clean", "heat", "cool"]
    assert choose_skills(household, "unified, heat") == {"unified": household.families, "heat": ("heat",)}
    assert list(choose_skills(countdown, "all")) == list(countdown.families)


def test_families_select_skills_and_training_tasks(recipe, tmp_path) -> None:
    household = get_environment("alfworld")
    assert choose_skills(household, "all", ("heat", "pick")) == {"pick": ("pick", "pick2"), "heat": ("heat",)}
    assert choose_skills(household, "unified", ("heat", "pick")) == {"unified": ("heat", "pick")}
    chosen = replace(Recipe.from_json(read_document(recipe)), out=tmp_path)
    chosen = replace(chosen, train=replace(chosen.train, families="pick,heat"))
    runs = plan_skill_runs(chosen, "all", tmp_path)
    planned = {run.skill: (run.families, run.prepared.recipe.train.families) for run in runs}
    assert planned == {"pick": (("pick", "pick2"), "pick"), "heat": (("heat",), "heat")}, "pick2 is served and not trained on"


@pytest.mark.slow
def test_tiny_policy_without_lora_becomes_one_unified_module(tmp_path, capsys) -> None:
    recipe = write_recipe(tmp_path, RECIPE.replace("lora_rank = 4", "").replace("steps = 60", "steps = 5"))
    out = tmp_path / "modules"
    assert train_modules(recipe, out, "--skills", "unified", "--iterations", "1") == 0
    module = read_module(out / "unified")
    assert not module.adapter and module.families == get_environment("alfworld").families
    assert module.scores["rl"]["panel"] == "alfworld/seen/4"
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(module.files)
    capsys.readouterr()
    assert main(["eval", str(out), "--json", "--out", str(tmp_path / "kept")]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    for name in ("successes", "steps", "prompt_tokens", "completion_tokens", "panel_hash", "seed"):
        assert result[name] == module.scores["rl"][name]
    assert main(["modules", "verify", str(out), "--base-model", "tiny-0.5m"]) == 0, "a whole model needs no base"
    assert main(["modules", str(out)]) == 0
    assert "own weights" in capsys.readouterr().out


def test_modules_list(trained, capsys) -> None:
    out, _ = trained
    assert main(["modules", "list", str(out)]) == 0
    output = capsys.readouterr().out
    assert main(["modules", str(out)]) == 0
    assert capsys.readouterr().out == output
    module = read_module(out / "pick")
    row = next(line for line in output.splitlines() if line.startswith("pick "))
    assert "pick, pick2" in row and f"tiny {module.fingerprint[:12]}" in row and str(module.tracker) in row
    success, (low, high) = module.scores["rl"]["success"], module.scores["rl"]["interval"]
    assert f"{100 * success:.1f}% [{100 * low:.1f}, {100 * high:.1f}]" in row and "kB" in row
    assert f"panel alfworld/seen/4[pick,pick2] (hash {module.scores['rl']['panel_hash']})" in output
    assert main(["modules", "list", str(out / "heat"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["heat"] == read_module(out / "heat").to_json()
    assert main(["modules", "no/where"]) == 2 and "the directory no/where does not exist" in capsys.readouterr().err
    assert main(["modules", "tarin"]) == 2
    assert "unknown command 'tarin' of `tacit modules`. Did you mean 'train'?" in capsys.readouterr().err


@pytest.mark.slow
def test_modules_verify_reports_all_damage(trained, copy, capsys, monkeypatch) -> None:
    assert main(["modules", "verify", str(copy)]) == 0
    assert "heat: 2 files unchanged" in capsys.readouterr().out
    file = copy / "pick" / "adapter_model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert main(["modules", "verify", str(copy)]) == 2
    printed = capsys.readouterr()
    assert f"pick: {file} is damaged" in printed.out and "heat: 2 files unchanged" in printed.out
    assert "1 of the modules" in printed.err
    assert main(["modules", "verify", str(trained[0]), "--base-model", "tiny-0.5m"]) == 2
    assert f"with fingerprint {read_module(copy / 'heat').fingerprint}, but base 'tiny-0.5m' has" in capsys.readouterr().out
    monkeypatch.setattr(type(get_environment("alfworld").tracker), "version", "alfworld-99")
    assert main(["modules", "verify", str(trained[0])]) == 2
    assert "tracker 'alfworld-99'" in capsys.readouterr().out
    assert main(["modules", "verify", str(copy / "pick"), "--base-model", "tiny-0.5m"]) == 2
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("is damaged", "tracker 'alfworld-99'", "but base 'tiny-0.5m' has")), "all at once"


def test_modules_export_of_a_chosen_checkpoint(trained, tmp_path, capsys) -> None:
    run = trained[0] / "runs" / "heat"
    assert main(["modules", "export", str(run), "--out", str(tmp_path), "--checkpoint", "sft", "--skill", "warm"]) == 0
    module = read_module(tmp_path / "warm")
    assert module.run["checkpoint"] == "sft-000060" and set(module.scores) == {"sft"} and module.families == ("heat",)
    assert module.digest != read_module(trained[0] / "heat").digest
    assert main(["modules", "export", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_eval_of_a_module_repeats_its_score(trained, tmp_path, capsys) -> None:
    out, _ = trained
    assert main(["eval", str(out / "pick"), "--json", "--out", str(tmp_path)]) == 0
    result, score = json.loads(capsys.readouterr().out.splitlines()[-1]), read_module(out / "pick").scores["rl"]
    for name in (
        "successes",
        "interval",
        "steps",
        "invalid",
        "prompt_tokens",
        "completion_tokens",
        "panel",
        "panel_hash",
        "seed",
    ):
        assert result[name] == score[name], name


@pytest.mark.slow
def test_eval_in_another_dtype_is_stored_separately(trained, tmp_path, capsys, monkeypatch) -> None:
    """A module has the same fingerprint in both dtypes but may act differently, so their episodes are not mixed."""
    monkeypatch.setattr("tacit.config.measuring.code_version", lambda: "0.1.0+tests")
    command, results = ["eval", str(trained[0] / "pick"), "--json", "--out", str(tmp_path)], []
    for form in ("float32", "bfloat16"):
        assert main([*command, "--engine.dtype", form]) == 0
        results.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert [result["numbers"] for result in results] == ["float32 on cpu", "bfloat16 on cpu"]
    assert len({result["fingerprint"] for result in results}) == 1
    assert len({result["episodes_file"] for result in results}) == len(list(tmp_path.glob("*.json"))) == 2
    assert main([*command, "--engine.device", "cpu", "--engine.max-batch", "3"]) == 0
    assert "already played: 4 episodes" in capsys.readouterr().out, "auto is what it stands for; batching is no matter"


@pytest.mark.slow
def test_eval_of_a_directory_routes_by_family(trained, tmp_path, capsys) -> None:
    """Families without a module are refused or use the fallback. Episodes of different fallbacks are never mixed."""
    out, _ = trained
    flags = ["--tasks", "6", "--temperature", "0", "--json", "--out", str(tmp_path)]
    assert main(["eval", str(out), "--families", "heat,pick", *flags]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["families"]) == {"heat", "pick"} and result["panel"] == "alfworld/seen/6[heat,pick]"
    assert main(["eval", str(out), *flags]) == 2
    assert "no module serves family" in (error := capsys.readouterr().err) and "heat (heat), pick (pick, pick2)" in error
    fingerprints = set()
    for skill in ("heat", "pick"):
        assert main(["eval", str(out), "--fallback", skill, *flags]) == 0
        fingerprints.add(json.loads(capsys.readouterr().out.splitlines()[-1])["fingerprint"])
    assert len(fingerprints | {result["fingerprint"]}) == 3, "episodes of one are never taken for those of another"


def test_max_tokens_is_the_largest_of_all_modules(trained) -> None:
    modules = find_modules(trained[0])
    short, long = modules["heat"], modules["pick"]
    long = replace(long, sampling=replace(long.sampling, max_tokens=512))
    assert short.sampling.max_tokens < 512
    assert module_recipe(trained[0], {"heat": short, "pick": long}, {}).train.max_tokens == 512
    overrides = {("max_tokens",): 7}
    assert module_recipe(trained[0], {"heat": short, "pick": long}, overrides).train.max_tokens == 7
    assert (
        module_recipe(trained[0], {"heat": short}, {}).train.max_tokens == read_settings(trained[0] / "runs/heat")["max_tokens"]
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--history", "0"], "prompt.history = 0: fixed when the module was trained"),
        (["--world", "cooking"], "for world 'alfworld', not 'cooking'"),
        (["--checkpoint", "best"], "--checkpoint best is for runs"),
        (["--base-model", "tiny-0.5m"], "but base 'tiny-0.5m' has"),
        (["--fallback", "cool"], "fallback 'cool' is not one of the modules heat (heat), pick (pick, pick2)"),
    ],
)
def test_eval_of_modules_refuses_bad_arguments(trained, capsys, flags, message) -> None:
    assert main(["eval", str(trained[0]), *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_play_names_the_module_that_acts(trained, capsys) -> None:
    out, _ = trained
    assert main(["play", "--policy", str(out), "--families", "pick2", "--max-steps", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"{out} (pick) plays seen/pick2-")
    assert main(["play", "--policy", str(out / "heat"), "--max-steps", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"{out / 'heat'} (heat) plays seen/heat-")
    assert main(["play", "--policy", str(out), "--families", "cool", "--fallback", "heat", "--max-steps", "1"]) == 0
    assert "(heat) plays seen/cool-" in capsys.readouterr().out


@pytest.mark.slow
def test_parent_of_a_modules_directory_is_accepted(trained, tmp_path, capsys) -> None:
    out, _ = trained
    flags = ["--families", "pick2", "--max-steps", "1"]
    assert main(["play", "--policy", str(out.parent), *flags]) == 0
    assert capsys.readouterr().out.startswith(f"{out} (pick) plays seen/pick2-")
    assert main(["eval", str(out.parent), *flags, "--tasks", "1", "--json", "--out", str(tmp_path / "kept")]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["target"] == str(out)
    assert main(["modules", str(out.parent)]) == 0
    assert "pick, pick2" in capsys.readouterr().out
    for name in ("one", "other"):
        shutil.copytree(out / "heat", tmp_path / "several" / name / "heat")
    assert main(["eval", str(tmp_path / "several")]) == 2
    error = capsys.readouterr().err
    assert "has several directories of modules; choose one: " in error and f"{tmp_path}/several/other." in error


def test_modules_help(capsys) -> None:
    assert main(["modules"]) == 0
    assert "train a module for every skill" in capsys.readouterr().out
    assert main(["modules", "train", "--help"]) == 0
    assert "--skills" in (output := capsys.readouterr().out) and "--engine.lora-rank" in output and "--sft.steps" in output
