"""The main commands end to end, with a policy small enough to run in seconds."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from tacit.cli.main import main
from tacit.runs.directory import read_settings, read_summary
from tacit.training.train import Trainer

SMALL = """
world = "countdown"
model = "tiny"
tiny = { vocab = 512, hidden = 32, layers = 1, heads = 2, kv_heads = 2, intermediate = 64 }
tasks = 32
max_steps = 4
checkpoint_every = 1

[method]
name = "grpo"
kl = 0.01

[schedule]
groups = 2
group_size = 2
iterations = 2
lr = 1e-3

[sft]
steps = 3
batch = 8
tasks = 16

[evaluation]
tasks = 6
every = 1
temperature = 1.0
max_steps = 4

[engine]
device = "cpu"
threads = 1
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("recipe") / "small.toml"
    file.write_text(SMALL)
    return file


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory) -> tuple[Path, str]:
    """A finished run and its output."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.StringIO())
        assert main(["train", "--config", str(recipe), "--out", str(run)]) == 0
        return run, sys.stdout.getvalue()


def test_train_prints_stages_and_result_table(finished):
    run, out = finished
    summary = read_summary(run)
    assert out.startswith("grpo on countdown\n")
    for line in ("untrained 0: success", "sft 3/3", "sft 3: success", "rl 2/2", "rl 2: success"):
        assert line in out
    table = out[out.index("stage ") :]
    assert [line.split("  ")[0] for line in table.splitlines()[1:4]] == ["untrained", "after sft 3", "after rl 2"]
    assert f"{summary['panel']} (hash {summary['panel_hash']})" in table and summary["digest"][:16] in table
    assert f"tacit eval {run}" in table and f"tacit play --policy {run}" in table
    assert read_settings(run)["schedule"]["iterations"] == 2


def last_json(text: str) -> dict:
    return json.loads(text.strip().splitlines()[-1])


def test_eval_reproduces_the_runs_final_result(finished, capsys):
    run, _ = finished
    assert main(["eval", str(run), "--json"]) == 0
    out = capsys.readouterr().out
    result, final = last_json(out), read_summary(run)["final"]
    assert result["checkpoint"] == "rl-000002" and result["equals_run"] is True and "after rl 2: the same" in out
    for name in ("success", "successes", "interval", "steps", "prompt_tokens", "completion_tokens", "panel_hash", "seed"):
        assert result[name] == final[name]
    (kept,) = (run / "evaluations").glob("rl-000002*.json")
    assert json.loads(kept.read_text()) == result


@pytest.mark.parametrize(("name", "stage"), [("sft", "sft"), ("untrained", "untrained")])
def test_eval_reproduces_sft_and_untrained_results(finished, capsys, name, stage):
    run, _ = finished
    assert main(["eval", str(run), "--checkpoint", name, "--json"]) == 0
    result = last_json(capsys.readouterr().out)
    recorded = next(e for e in read_summary(run)["evaluations"] if e["stage"] == stage)
    assert result["equals_run"] is True and result["completion_tokens"] == recorded["completion_tokens"]


def test_eval_reports_a_result_that_differs_from_the_run(finished, capsys, monkeypatch):
    """With the untrained weights in place of the checkpoint, the comparison fails."""
    run, _ = finished
    from tacit.engines.local.policy import LocalPolicy

    monkeypatch.setattr(LocalPolicy, "load", lambda self, path: None)
    assert main(["eval", str(run), "--fresh", "--json"]) == 0
    out = capsys.readouterr().out
    assert "NOT the same" in out and last_json(out)["equals_run"] is False


@pytest.mark.slow
def test_eval_with_other_settings_compares_with_nothing(finished, capsys):
    run, _ = finished
    for flags in (["--seed", "9"], ["--tasks", "3"], ["--panel", "countdown/hard/3"], ["--temperature", "0.1"]):
        assert main(["eval", str(run), "--json", *flags]) == 0
        out = capsys.readouterr().out
        assert last_json(out)["equals_run"] is None and "no evaluation of this checkpoint" in out
    assert len(list((run / "evaluations").glob("rl-000002*.json"))) >= 4


def test_eval_of_a_run_with_another_method(finished, capsys):
    run, _ = finished
    assert main(["eval", str(run), "--method", "rloo", "--history", "0", "--tasks", "2"]) == 0
    assert main(["eval", str(run), "--checkpoint", "rl-9"]) == 2
    assert "no checkpoint 'rl-9'" in capsys.readouterr().err


def test_eval_of_expert_and_model(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "expert", "--world", "countdown", "--tasks", "5", "--json"]) == 0
    assert last_json(capsys.readouterr().out)["success"] == 1.0
    assert not list(tmp_path.iterdir()), "an expert's episodes are not kept"
    small = ["--tiny.hidden", "32", "--tiny.layers", "1", "--tiny.heads", "2", "--tiny.kv-heads", "2", "--tiny.vocab", "512"]
    assert main(["eval", "tiny", "--world", "countdown", "--tasks", "2", "--max-steps", "2", "--json", *small]) == 0
    result = last_json(capsys.readouterr().out)
    assert result["episodes"] == 2 and (tmp_path / "evaluations" / "tiny" / result["episodes_file"]).exists()


def test_existing_run_is_not_restarted_and_finished_run_shows_its_result(finished, recipe, capsys):
    run, _ = finished
    assert main(["train", "--config", str(recipe), "--out", str(run)]) == 2
    assert f"already contains a run. Resume it with `tacit train --resume {run}`" in capsys.readouterr().err
    assert main(["train", "--resume", str(run)]) == 0
    out = capsys.readouterr().out
    assert f"{run} is finished" in out and "after rl 2" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--kl", "1"], "method.kl=1.0 differs from"),
        (["--seed", "4"], "seed=4 differs from"),
        (["--sft.steps", "9"], "sft.steps=9 differs from"),
        (["--method", "rloo"], "method.name=rloo differs from"),
        (["--out", "elsewhere"], "to continue elsewhere, copy the directory"),
        (["--config", "quickstart"], "remove --config"),
        (["--iterations", "1"], "has already done 2"),
    ],
)
def test_resume_refuses_other_settings(finished, capsys, flags, message):
    run, _ = finished
    assert main(["train", "--resume", str(run), *flags]) == 2
    assert message in capsys.readouterr().err


def test_finished_run_without_checkpoints_is_not_overwritten(finished, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    shutil.rmtree(run / "checkpoints")
    before = (run / "metrics.jsonl").read_bytes()
    assert main(["train", "--resume", str(run), "--iterations", "3"]) == 2
    assert "is finished, but its checkpoints are gone" in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_resumed_run_equals_uninterrupted_run(finished, recipe, tmp_path, capsys, monkeypatch):
    whole, _ = finished
    run = tmp_path / "cut"
    save = Trainer.save
    calls = []

    def save_then_interrupt(self):
        save(self)
        calls.append(self.run.checkpoints.newest().path.name)
        if calls[-1] == "rl-000001":
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "save", save_then_interrupt)
    assert main(["train", "--config", str(recipe), "--out", str(run)]) == 130
    assert f"tacit train --resume {run}" in capsys.readouterr().err and calls[-1] == "rl-000001"
    monkeypatch.setattr(Trainer, "save", save)

    assert main(["eval", str(run), "--json"]) == 0
    assert last_json(capsys.readouterr().out)["equals_run"] is True

    assert main(["train", "--resume", str(run), "--keep", "1"]) == 0
    assert "resuming after rl 1" in capsys.readouterr().out
    assert read_summary(run)["digest"] == read_summary(whole)["digest"]
    assert read_summary(run)["success"] == read_summary(whole)["success"]
    assert read_settings(run)["keep"] == 1


def test_ppo_run_gets_a_value_head_and_can_be_evaluated(recipe, tmp_path, capsys):
    run = tmp_path / "ppo"
    flags = ["--method", "ppo", "--iterations", "1", "--sft.steps", "0", "--evaluation.tasks", "2"]
    assert main(["train", "--config", str(recipe), "--out", str(run), *flags]) == 0
    assert "note   the method learns a value, so engine.value_head = true" in capsys.readouterr().out
    assert read_settings(run)["engine"]["value_head"] is True
    assert main(["eval", str(run), "--json"]) == 0
    assert last_json(capsys.readouterr().out)["equals_run"] is True


def test_play_of_a_run_repeats_its_evaluation_episode(finished, capsys):
    from rich.control import strip_control_codes

    from tacit.cli.terminal import visible
    from tacit.runs.trajectories import read_records

    run, _ = finished
    assert main(["play", "--policy", str(run), "--task", "2", "--prompts"]) == 0
    out = capsys.readouterr().out
    episode = read_records(run / "trajectories" / "eval-rl-000002.jsonl.gz")[2]
    assert episode["task"] in out
    for turn in episode["turns"]:
        assert visible(turn["saw"]) in out and f"> {visible(strip_control_codes(turn['action']))}" in out
    assert f"no success after {len(episode['turns'])} steps" in out


def test_play_expert(capsys):
    assert main(["play", "--world", "countdown", "--policy", "expert", "--task", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("expert plays countdown/test/") and "  1 > op(" in out and "success in" in out


def test_play_marks_answers_without_an_action(capsys):
    flags = ["--world", "countdown", "--style", "tags", "--max-steps", "1", "--max-tokens", "4", "--engine.threads", "1"]
    assert main(["play", "--policy", "tiny-base", *flags]) == 0
    assert "[no action found: using the end of the answer]" in capsys.readouterr().out


def test_play_as_human(capsys, monkeypatch):
    def typed(*lines: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert main(["play", "--world", "countdown", "--policy", "human", "--max-steps", "2"]) == 0
        return capsys.readouterr().out

    output = typed("?", "q")
    assert "op(+, " in output and "stopped." in output
    action = next(line for line in output.splitlines() if line.startswith("op(*, "))
    assert f"  1 > {action}" in typed("", action) and "stopped." in typed(action)
    assert "no success after 2 steps: out of steps" in typed(action, "nonsense")
