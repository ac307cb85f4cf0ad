"""The command itself: worlds measured, recorded runs read, refusals in words."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import pytest

from tacit.cli.main import main

TOLD = ["--turns", "20", "--prompt-tokens", "500", "--completion-tokens", "30"]


def test_the_issues_command(capsys, tmp_path):
    assert main(["plan", "--model", "8B", "--gpus", "64", "--world", "alfworld", "--json", str(tmp_path / "plan.json")]) == 0
    out = capsys.readouterr().out
    assert "Llama-3.1-8B, 8.03B weights" in out and "an iteration" in out and "other divisions" in out
    found = json.loads((tmp_path / "plan.json").read_text())
    work, plan = found["workload"], found["plans"][0]
    assert 450 < work["prompt"] < 600 and 5 < work["turns"] < 20  # 512 and 552 tokens with two tokenizers of that size
    assert plan["devices"] <= 64 and plan["iteration"] == pytest.approx(plan["rollout"] + plan["update_total"] + plan["push"])


def test_several_numbers_make_a_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # words stay whole
    assert main(["plan", "--model", "70B", "--gpus", "8,128", *TOLD]) == 0
    out = capsys.readouterr().out
    assert "does not fit" in out and "What would: --engine.lora-rank 16" in out and "128" in out


def test_what_does_not_fit_is_an_answer_of_its_own(capsys):
    assert main(["plan", "--model", "70B", "--gpus", "1", *TOLD]) == 1
    assert "what would" in capsys.readouterr().out


def test_a_checkpoint_is_measured_with_its_own_tokenizer(capsys):
    arguments = ["--gpus", "1", "--device", "cpu", "--sampler", "local", "--world", "countdown", "--measure", "4"]
    assert main(["plan", "--model", "tiny-base", *arguments]) == 0
    assert "tokenizer of tiny-base" in capsys.readouterr().out


def test_a_run_is_measured_and_simulated(capsys, tmp_path):
    records = [{"turns": [{"prompt_tokens": 100 + i, "tokens": 5}] * (1 + i)} for i in range(8)]
    with gzip.open(tmp_path / "rl-000001.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    run = [
        "--from",
        str(tmp_path / "rl-000001.jsonl.gz"),
        "--simulate",
        "2",
        "--gpus",
        "8",
        "--json",
        str(tmp_path / "out.json"),
    ]
    assert main(["plan", "--model", "8B", *run]) == 0
    out = capsys.readouterr().out
    assert "8 recorded episodes" in out and "4.5 turns (longest 8)" in out and "k = 2, gathered" in out
    simulated = json.loads((tmp_path / "out.json").read_text())["simulated"]
    assert len(simulated) == 5 and all(0 <= outcome["ranks_wait"] < 1 for outcome in simulated.values())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "8B"], "what would be played?"),
        (["--model", "8B", *TOLD, "--gpus", "0"], "gpus = 0 must be at least 1"),
        (["--model", "8B", *TOLD, "--device", "h1000"], "unknown device 'h1000'. Did you mean 'h100'?"),
        (["--model", "Qwen/Qwen3-8B", *TOLD], "is not on this machine; name its directory, or its size"),
        (["--model", "8B", *TOLD, "--world-deaths", "2"], "world_deaths = 2.0 must be between 0 and 1"),
        (["--model", "8B", "--from", "nowhere.jsonl.gz"], "cannot read the recorded episodes in nowhere.jsonl.gz"),
        (["--model", "8B", *TOLD, "--ranks", "8", "--servers", "8"], "8 ranks and 8 servers do not go into 8 devices"),
    ],
)
def test_mistakes_are_said_in_words(argv, message, capsys):
    assert main(["plan", *argv]) == 2
    assert message in capsys.readouterr().err


def test_help_is_light():
    code = "import sys; from tacit.cli.main import main; main(['plan', '--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("False"), done.stderr
