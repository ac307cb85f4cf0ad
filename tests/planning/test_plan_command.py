"""`tacit plan`: measured worlds, recorded runs, printed commands, and error messages."""

from __future__ import annotations

import gzip
import json
import shlex
import subprocess
import sys

import pytest

from tacit.cli import train
from tacit.cli.main import main
from tacit.config.recipe import Recipe
from tacit.engines.models.bases import base_path

TOLD = ["--turns", "20", "--prompt-tokens", "500", "--completion-tokens", "30"]


def test_plan_command_prints_and_writes_a_plan(capsys, tmp_path):
    assert main(["plan", "--model", "8B", "--gpus", "64", "--world", "alfworld", "--json", str(tmp_path / "plan.json")]) == 0
    out = capsys.readouterr().out
    assert "Llama-3.1-8B, 8.03B weights" in out and "an iteration" in out and "other divisions" in out
    found = json.loads((tmp_path / "plan.json").read_text())
    work, plan = found["workload"], found["plans"][0]
    assert 450 < work["prompt"] < 600 and 5 < work["turns"] < 20  # 512 and 552 tokens with two tokenizers of that size
    assert plan["devices"] <= 64 and plan["iteration"] == pytest.approx(plan["rollout"] + plan["update_total"] + plan["push"])


def test_several_gpu_counts_make_a_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # no line breaks inside phrases
    assert main(["plan", "--model", "70B", "--gpus", "8,128", *TOLD]) == 0
    out = capsys.readouterr().out
    assert "does not fit" in out and "What would fit: --engine.lora-rank 16" in out and "128" in out


def test_plan_that_does_not_fit_exits_with_one(capsys):
    assert main(["plan", "--model", "70B", "--gpus", "1", *TOLD]) == 1
    assert "what would" in capsys.readouterr().out


def test_checkpoint_is_measured_with_its_own_tokenizer(capsys):
    arguments = ["--gpus", "1", "--gpu", "cpu", "--sampler", "local", "--world", "countdown", "--measure", "4"]
    assert main(["plan", "--model", "tiny-base", *arguments]) == 0
    assert "tokenizer of tiny-base" in capsys.readouterr().out


def test_recorded_run_is_measured(capsys, tmp_path):
    records = [{"turns": [{"prompt_tokens": 100 + i, "tokens": 5}] * (1 + i)} for i in range(8)]
    with gzip.open(tmp_path / "rl-000001.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    run = ["--from", str(tmp_path / "rl-000001.jsonl.gz"), "--gpus", "8"]
    assert main(["plan", "--model", "8B", *run]) == 0
    out = capsys.readouterr().out
    assert "8 recorded episodes" in out and "4.5 turns (longest 8)" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "8B"], "no workload: give"),
        (["--model", "8B", *TOLD, "--gpus", "0"], "gpus = 0 must be at least 1"),
        (["--model", "8B", *TOLD, "--gpu", "h1000"], "unknown GPU 'h1000'. Did you mean 'h100'?"),
        (["--model", "8B", *TOLD, "--network", "0"], "network = 0.0 must be above 0"),
        (["--model", "8B", "--from", "nowhere.jsonl.gz"], "cannot read the recorded episodes in nowhere.jsonl.gz"),
        (["--model", "8B", *TOLD, "--ranks", "8", "--servers", "8"], "8 ranks and 8 servers do not fit on 8 devices"),
    ],
)
def test_invalid_arguments_are_reported(argv, message, capsys):
    assert main(["plan", *argv]) == 2
    assert message in capsys.readouterr().err


def resolved(command: str) -> Recipe:
    """The run that a printed command starts, as `tacit train` reads it."""
    program, verb, *argv = shlex.split(command)
    assert (program, verb) == ("tacit", "train")
    arguments, overrides = train.make_parser(*train.peek_arguments(argv)).parse(argv)
    return Recipe.resolve(arguments.config, overrides)


@pytest.mark.parametrize(
    ("argv", "engine", "expected"),
    [
        (["--gpus", "1", "--lora-rank", "8"], "local", {"lora_rank": 8}),
        (["--gpus", "4", "--servers", "0", "--recompute"], "sharded", {"ranks": 4, "gradient_checkpointing": True}),
        (["--gpus", "4", "--ranks", "2", "--servers", "2", "--overlap", "1", "--gather", "layer"],
         "sharded", {"ranks": 2, "servers": 2, "gather": "layer"}),
        (["--gpus", "8", "--server-gpus", "2"], "sharded", {"lora_rank": 0}),
    ],
)  # fmt: skip
def test_printed_command_starts_the_planned_run(argv, engine, expected, capsys, tmp_path):
    played = ["--world", "countdown", "--measure", "2", "--method", "bipace", "--group-size", "4", "--no-chat"]
    played += ["--sft.steps", "60", "--evaluation.every", "7"]
    flags = ["--model", "tiny-base", "--gpu", "a100", *argv, *played, "--episodes", "64", "--json", str(tmp_path / "plan.json")]
    assert main(["plan", *flags]) == 0
    out = capsys.readouterr().out
    command = next(line.strip() for line in out.splitlines() if line.startswith("  tacit train"))
    assert command == json.loads((tmp_path / "plan.json").read_text())["command"]
    recipe = resolved(command)
    assert (recipe.world, recipe.method, recipe.model, recipe.engine_name) == ("countdown", "bipace", "tiny-base", engine)
    assert (recipe.schedule.group_size, recipe.schedule.groups, recipe.settings.prompt.chat) == (4, 16, False)
    assert {name: getattr(recipe.engine, name) for name in expected} == expected
    assert recipe.train.overlap == int("--overlap" in argv)
    assert (recipe.train.sft.steps, recipe.train.evaluation.every) == (60, 7)


def test_plan_from_run_keeps_its_settings(capsys, tmp_path):
    """`--from RUN` with the run's own model keeps its settings, adapters and completion length, in a new directory."""
    engine = {"lora_rank": 4, "device": "cpu"}
    overrides = {("world",): "countdown", ("model",): "tiny-base", ("out",): "x"}
    settings = Recipe.resolve(None, {**overrides, **{("engine", name): value for name, value in engine.items()}})
    run = tmp_path / "run"
    (run / "trajectories").mkdir(parents=True)
    (run / "settings.json").write_text(json.dumps(settings.to_json()))
    with gzip.open(run / "trajectories" / "rl-000001.jsonl.gz", "wt") as file:
        file.write(json.dumps({"turns": [{"prompt_tokens": 100, "tokens": 7}] * 3}) + "\n")
    assert main(["plan", "--model", "tiny-base", "--gpus", "2", "--ranks", "1", "--servers", "1", "--from", str(run)]) == 0
    out = capsys.readouterr().out
    assert "7 tokens a turn, as recorded (--from)" in out
    recipe = resolved(next(line for line in out.splitlines() if line.startswith("  tacit train")))
    assert recipe.out == tmp_path / "run-2gpus" and recipe.engine.servers == 1
    assert (recipe.settings, recipe.engine.lora_rank) == (settings.settings, 4)
    assert (recipe.engine.device, recipe.engine.gradient_checkpointing) == ("auto", False)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--model", "tiny-base"], "tokens a turn, the expert's own actions; --from RUN or --completion-tokens N is better"),
        (["--model", "8B", "--max-tokens", "300"], "102 tokens a turn, assumed: a third of the 300 allowed (--max-tokens)"),
        (["--model", "8B", "--completion-tokens", "90"], "90 tokens a turn (--completion-tokens)"),
    ],
)
def test_plan_states_the_source_of_completion_lengths(argv, words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["plan", "--world", "countdown", "--measure", "2", "--gpus", "8", *argv]) == 0
    assert words in capsys.readouterr().out


def test_hub_id_is_read_from_cache_or_rejected(capsys, tmp_path, monkeypatch):
    import huggingface_hub

    place = tmp_path / "snapshot"
    place.mkdir()
    (place / "config.json").write_text((base_path("tiny-base") / "config.json").read_text())
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda name, file: str(place / file) if name == "a/b" else None
    )
    assert main(["plan", "--model", "a/b", "--gpus", "2", *TOLD]) == 0
    out = capsys.readouterr().out
    assert out.startswith("a/b, 0.00B weights") and "--model a/b --engine sharded" in out
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    assert main(["plan", "--model", "a/c", *TOLD]) == 2
    error = capsys.readouterr().err
    assert "does not answer" in error and "give its size: 135M" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("found", "device", "why"),
    [
        ([], "h100", "assumed, none is found here"),
        (["NVIDIA H200"] * 4, "h200", "found here: NVIDIA H200"),
        (["NVIDIA A100-SXM4-40GB"], "a100-40", "found here"),
        (["NVIDIA A100-SXM4-80GB"], "a100", "found here"),
        (["NVIDIA GeForce RTX 4090"], "4090", "found here"),
        (["Tesla T4"], "h100", "Tesla T4 is not in the table"),
    ],
)
def test_default_gpu_is_the_detected_one(found, device, why, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tacit.cli.plan.find_gpus", lambda: found)
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["plan", "--model", "135M", *TOLD, "--json", str(tmp_path / "plan.json")]) == 0
    out, plan = capsys.readouterr().out, json.loads((tmp_path / "plan.json").read_text())
    assert plan["device"] == device and why in out and plan["plans"][0]["devices"] <= (len(found) or 8)


def test_plan_help_does_not_import_torch():
    code = "import sys; from tacit.cli.main import main; main(['plan', '--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("False"), done.stderr
