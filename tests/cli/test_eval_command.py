"""`tacit eval`: reproducible, resumable, over HTTP, and on custom panels."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from chat_server import says, serving
from forked import start

from tacit.cli.main import main
from tacit.evaluation.panels import Panel
from tacit.runs.directory import code_version
from tacit.worlds import get_environment
from tacit.worlds.countdown.world import CountdownWorld, solve

WORLD = get_environment("countdown")
SIZES = ["--tiny.vocab", "512", "--tiny.hidden", "32", "--tiny.layers", "1", "--tiny.heads", "2", "--tiny.kv-heads", "2"]
TRAIN = [
    *("train", "--world", "countdown", "--model", "tiny", "--tasks", "64", "--max-steps", "4", "--iterations", "0"),
    *("--sft.steps", "60", "--sft.batch", "16", "--sft.tasks", "64", "--sft.lr", "3e-3", "--engine.threads", "1"),
    *("--evaluation.tasks", "12", "--evaluation.max-steps", "4", "--no-evaluation.untrained", *SIZES),
]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        # A commit to the project during the tests must not change the recorded version.
        patch.setattr("tacit.config.measuring.code_version", lambda: "0.1.0+tests")
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "small"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.StringIO())
        assert main([*TRAIN, "--out", str(path)]) == 0
    return path


def measure(capsys, *words: str | Path) -> dict:
    assert main(["eval", *map(str, words), "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def episodes(directory: Path, result: dict) -> dict[str, list]:
    """task -> completions, one per turn"""
    lines = (directory / result["episodes_file"]).read_text().splitlines()[1:]
    return {r["task"]: [turn["wrote"] for turn in r["turns"]] for r in map(json.loads, lines)}


@pytest.mark.slow
def test_greedy_eval_is_equal_across_processes_and_batch_sizes(run, capsys, tmp_path):
    greedy = [run, "--temperature", "0", "--tasks", "24"]
    first = measure(capsys, *greedy, "--out", tmp_path / "first")
    others = [
        measure(capsys, *greedy, "--out", tmp_path / "twice"),
        measure(capsys, *greedy, "--out", tmp_path / "one", "--batch", "1"),
        measure(capsys, *greedy, "--out", tmp_path / "seven", "--batch", "7"),
    ]
    command = [sys.executable, "-m", "tacit.cli.main", "eval", *map(str, greedy), "--out", str(tmp_path / "process"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    others.append(json.loads(done.stdout.strip().splitlines()[-1]))
    written = episodes(tmp_path / "first", first)
    assert len(written) == 24 and len({tuple(turns) for turns in written.values()}) > 5, "the policy says different things"
    for other, place in zip(others, ("twice", "one", "seven", "process"), strict=True):
        assert episodes(tmp_path / place, other) == written
        for name in ("outcomes", "panel_hash", "fingerprint", "steps", "completion_tokens", "families", "behaviour"):
            assert other[name] == first[name], (place, name)


@pytest.mark.slow
def test_killed_eval_resumes_to_the_same_result(run, capsys, tmp_path):
    words = ["eval", str(run), "--tasks", "16", "--repeats", "3", "--batch", "2", "--temperature", "1", "--out"]
    place = tmp_path / "killed"
    # A subprocess has the real code version, so the resumed evaluation takes it from the file.
    process = start(*words, place)
    process.until(lambda: kept(place) >= 8)
    process.kill()
    before = kept(place)
    assert 8 <= before < 48, "killed on the way"
    code = json.loads(next(place.glob("*.jsonl")).read_text().splitlines()[0])["code"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tacit.config.measuring.code_version", lambda: code)
        assert main([*words, str(place), "--json"]) == 0
        out = capsys.readouterr().out
        assert f"already played: {before} episodes" in out or f"played before: {before - 1} episodes" in out
        resumed = json.loads(out.strip().splitlines()[-1])
        whole = measure(capsys, *words[1:], tmp_path / "whole")
    assert kept(place) == 48 and resumed == whole
    assert whole["repeats"] == 3 and set(whole["majority_at"]) == {"3"}


def kept(directory: Path) -> int:
    return max((len(file.read_text().splitlines()) - 1 for file in directory.glob("*.jsonl")), default=0)


def test_eval_in_another_dtype_is_refused(run, capsys):
    assert main(["eval", str(run), "--engine.dtype", "bfloat16"]) == 2
    assert "--engine.dtype float32" in capsys.readouterr().err


SCORE = '{"stage": "rl", "step": 2, "success": %s}'


@pytest.mark.parametrize(
    "evaluations", ["[", "1}", "[1]}", f"[{SCORE % ('1' * 400)}]}}", f"[{SCORE % 'null'}]}}"],
    ids=["truncated", "number", "numbers", "huge", "null"],
)  # fmt: skip
def test_eval_works_with_a_damaged_summary(run, capsys, tmp_path, evaluations):
    hurt = tmp_path / "hurt"
    shutil.copytree(run, hurt)
    (hurt / "summary.json").write_text(f'{{"evaluations": {evaluations}')
    assert main(["eval", str(hurt)]) == 0
    output = capsys.readouterr().out
    assert "in the run" in output and "after sft 60: the same" in output, "the checkpoint still knows"
    assert f"summary.json is damaged; `tacit train --resume {hurt}` resumes it" in " ".join(output.split())


def test_missing_checkpoint_is_refused_and_lists_existing_ones(run, capsys):
    assert main(["eval", str(run / "checkpoints" / "rl-000009")]) == 2
    assert "no checkpoint 'rl-000009'" in (error := capsys.readouterr().err) and "there are sft-000050, sft-000060" in error


def test_interrupted_eval_says_how_to_resume(run, capsys, tmp_path, monkeypatch):
    from tacit.engines.local.policy import LocalPolicy

    def interrupt(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalPolicy, "open_scheduler", interrupt)
    assert main(["eval", str(run), "--out", str(tmp_path)]) == 130
    assert "the same command resumes" in capsys.readouterr().err


def test_result_records_panel_and_sampling(run, capsys, tmp_path):
    file = tmp_path / "deep" / "result.json"
    assert main(["eval", str(run), "--json", str(file)]) == 0
    out = capsys.readouterr().out
    result = json.loads(file.read_text())
    assert f"written to {file}" in out and result["equals_run"] is True
    panel = Panel.of(WORLD, "test", 12)
    assert (result["panel"], result["panel_version"], result["panel_hash"]) == (panel.name, panel.version, panel.hash)
    assert result["code"] == "0.1.0+tests" and len(result["fingerprint"]) == 64 and result["reads"]["method"] == "grpo"
    assert result["sampling"]["temperature"] == 0.4 and result["max_steps"] == 4 and result["panel_differs"] == ""
    assert set(result["families"]) == {"three_numbers", "four_numbers"} and "three_numbers" in out and "macro" in out
    assert result["behaviour"]["episodes"] == 12 and "its final" in out
    assert re.search(r"failures +\d+: (out of steps|stuck) \d", out), "not timeout, which was no matter of time"


def test_eval_accepts_a_checkpoint_directory(run, capsys):
    checkpoint = run / "checkpoints" / "sft-000060"
    assert measure(capsys, checkpoint)["equals_run"] is True


@pytest.mark.parametrize("words", [["--max-steps", "2"], ["--history", "3"], ["--method", "rloo"]])
def test_eval_with_other_settings_is_stored_separately(run, capsys, words):
    result = measure(capsys, run, *words)
    assert result["equals_run"] is None
    (kept_as,) = (run / "evaluations").glob(f"*{Path(result['episodes_file']).stem}.json")
    assert json.loads(kept_as.read_text()) == result, "in a file of its own"


def test_eval_of_an_unfinished_run_says_so(run, capsys, tmp_path):
    import shutil

    copy = tmp_path / "unfinished"
    shutil.copytree(run, copy)
    (copy / "summary.json").unlink()
    assert main(["eval", str(copy)]) == 0
    out = capsys.readouterr().out
    assert "the run has not ended" in out and f"tacit train --resume {copy}" in out
    shutil.rmtree(copy / "checkpoints")
    assert main(["eval", str(copy)]) == 2
    assert "has no checkpoint yet" in capsys.readouterr().err


def test_eval_of_selected_families(run, capsys):
    result = measure(capsys, run, "--families", "four_numbers")
    assert list(result["families"]) == ["four_numbers"] and result["panel"] == "countdown/test/12[four_numbers]"
    assert main(["eval", str(run), "--families", "five_numbers"]) == 2
    assert "unknown family 'five_numbers' of world 'countdown'" in capsys.readouterr().err


def own_panel(path: Path, *targets: int) -> Path:
    lines = [{"name": "my-own", "version": "2024", "world": "countdown"}]
    lines += [
        {
            "id": f"own/{t}",
            "family": f"own{t % 2}",
            "goal": f"Use 2, 3, 4 to make {t}.",
            "data": {"numbers": [2, 3, 4], "target": t},
        }
        for t in targets
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_eval_on_a_custom_panel(run, capsys, tmp_path):
    panel = own_panel(tmp_path / "mine.jsonl", 24, 9, 10)
    expert = measure(capsys, "expert", "--panel", panel)
    assert expert["success"] == 1.0 and (expert["panel"], expert["panel_version"]) == ("my-own", "2024")
    assert measure(capsys, run, "--panel", panel)["panel_hash"] == expert["panel_hash"]
    other = own_panel(tmp_path / "other.jsonl", 24, 9, 14)
    assert measure(capsys, "expert", "--panel", other)["panel_hash"] != expert["panel_hash"]


@pytest.mark.slow
def test_run_with_a_custom_evaluation_panel(capsys, tmp_path):
    panel = own_panel(tmp_path / "mine.jsonl", 24, 9, 10)
    place = tmp_path / "run"
    assert main([*TRAIN, "--sft.steps", "2", "--evaluation.panel", str(panel), "--out", str(place)]) == 0
    assert f"panel  {panel}" in capsys.readouterr().out
    result = measure(capsys, place)
    assert result["panel"] == "my-own" and result["episodes"] == 3 and result["equals_run"] is True
    assert measure(capsys, place, "--tasks", "4")["panel"] == "countdown/test/4", "the flag wins"
    assert measure(capsys, place, "--panel", "countdown/hard/2")["panel"] == "countdown/hard/2"
    assert main([*TRAIN, "--evaluation.panel", str(tmp_path / "none.json"), "--out", str(tmp_path / "other")]) == 2
    assert "cannot read the panel" in capsys.readouterr().err and not (tmp_path / "other").exists()


def test_task_that_fails_to_set_up_is_reported_as_crashed(capsys, tmp_path):
    panel = own_panel(tmp_path / "mine.jsonl", 24)
    with panel.open("a") as file:
        file.write('{"id": "own/empty", "goal": "?", "data": {}}\n')
    assert main(["eval", "tiny", "--panel", str(panel), "--max-steps", "1", "--out", str(tmp_path / "kept"), *SIZES]) == 0
    out = capsys.readouterr().out
    assert "1 episode ended because the world broke" in out and "its data has no 'numbers'" in out
    assert "in task 'own/empty' of world 'countdown'" in " ".join(out.split())


def test_play_fails_if_the_world_breaks(capsys, monkeypatch):
    words = ["play", "--world", "countdown", "--policy", "expert"]
    assert main(words) == 0

    def break_down(self, action):
        raise ValueError("the numbers are gone")

    monkeypatch.setattr(CountdownWorld, "step", break_down)
    assert main(words) == 1
    assert "the numbers are gone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--panel", "missing.jsonl"], "cannot read the panel missing.jsonl: No such file"),
        (["--panel", "missing.jsonl", "--tasks", "3"], "--tasks selects from a split"),
        (["--panel", "countdown/test"], "is not a panel"),
        (["--panel", "alfworld/unseen/8"], "belongs to world 'alfworld'"),
        (["--k", "3"], "--k 3 needs 3 episodes per task, and --repeats is 1: add --repeats 3"),
        (["--k", "0", "--repeats", "2"], "each k must be at least 1"),
        (["--k", "x"], "--k must be a whole number, not 'x'"),
        (["--batch", "0"], "--batch 0 must be at least 1"),
        (["--model", "m"], "is for --endpoint"),
        (["--endpoint", "http://x", "--model", "m"], "not both"),
        (["--out", "x.json"], "use --json FILE"),
        (["--timeout", "0"], "--timeout 0.0 must be above 0"),
    ],
)
def test_impossible_eval_arguments_are_refused(run, capsys, words, message):
    assert main(["eval", str(run), *words]) == 2
    assert message in capsys.readouterr().err


def test_panel_of_another_world_is_refused(run, capsys, tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"name": "p", "version": "1"}\n{"id": "x", "world": "cooking", "goal": ""}\n')
    assert main(["eval", str(run), "--panel", str(file)]) == 2
    assert "is for world 'cooking' and cannot be played in 'countdown'" in capsys.readouterr().err


def test_eval_warns_when_tasks_differ_from_published_panel(run, capsys, monkeypatch):
    other = replace(WORLD, panels={"test": {4: "0123456789abcdef"}})
    monkeypatch.setattr("tacit.worlds.countdown.ENVIRONMENT", other)
    assert main(["eval", str(run)]) == 0
    out = capsys.readouterr().out
    assert (
        "warning: this machine makes other tasks than the published panel countdown/test/4" in out and "0123456789abcdef" in out
    )


def test_episodes_of_another_version_are_not_reused(run, capsys, tmp_path, monkeypatch):
    measure(capsys, run, "--out", tmp_path)
    monkeypatch.setattr("tacit.config.measuring.code_version", lambda: "0.2.0")
    assert main(["eval", str(run), "--out", str(tmp_path)]) == 0
    assert "note: earlier episodes were played by tacit 0.1.0+tests, this is 0.2.0" in capsys.readouterr().out


def solving(body: dict) -> tuple[int, dict]:
    """The expert's answer to the full prompt."""
    prompt = body["messages"][0]["content"]
    task = next(t for t in Panel.of(WORLD, "test", 6).tasks if str(t.data["target"]) in prompt)
    plan = solve(tuple(task.data["numbers"]), task.data["target"])
    return 200, says(f"<think>so</think><action>{plan[0]}</action>", prompt_tokens=50, completion_tokens=20)


def test_eval_of_an_endpoint_is_measured_once(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_KEY", "abc")
    with serving(solving) as server:
        words = ["--endpoint", server.url, "--model", "served", "--world", "countdown", "--tasks", "6", "--max-steps", "2"]
        words += ["--key-variable", "TEST_KEY", "--concurrency", "3", "--out", str(tmp_path)]
        result = measure(capsys, *words)
        count = len(server.requests)
        assert set(server.keys) == {"Bearer abc"} and 0 < server.busiest <= 3 and count > 6
        again = measure(capsys, *words)
        assert len(server.requests) == count and again == result, "cached answers cost no request"
    assert result["fingerprint"] == f"served at {server.url}" and result["invalid"] == 0.0
    assert (result["prompt_tokens"], result["completion_tokens"]) == (50.0, 20.0) and result["crashed"] == 0


def test_eval_resumes_after_an_endpoint_failure(capsys, tmp_path):
    state = {"left": 5}

    def falter(body):
        state["left"] -= 1
        return solving(body) if state["left"] >= 0 else (401, {"error": {"message": "the key has expired"}})

    with serving(falter) as server:
        words = [
            "eval",
            "--endpoint",
            server.url,
            "--model",
            "served",
            "--world",
            "countdown",
            "--tasks",
            "6",
            "--max-steps",
            "2",
        ]
        words += ["--concurrency", "1", "--batch", "1", "--out", str(tmp_path)]
        assert main(words) == 2
        assert "refuses the key" in capsys.readouterr().err
        before = kept(tmp_path)
        state["left"] = 1000
        result = measure(capsys, *words[1:])
    assert 0 < before < 6 == result["episodes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: TARGET"),
        (["--endpoint", "http://localhost:1/v1", "--world", "countdown"], "add --model NAME"),
        (["--endpoint", "localhost", "--model", "m", "--world", "countdown"], "must begin with http"),
        (["--endpoint", "http://localhost:1/v1", "--model", "m"], "'m' needs a world"),
        (
            ["--endpoint", "http://x", "--model", "m", "--world", "countdown", "--checkpoint", "best"],
            "--checkpoint best is for runs",
        ),
    ],
)
def test_impossible_endpoint_arguments_are_refused(capsys, words, message):
    assert main(["eval", *words]) == 2
    assert message in capsys.readouterr().err


def test_out_is_checked_before_loading(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tacit.cli.eval.open_agent", lambda *_, **__: pytest.fail("it was loaded"))
    (tmp_path / "note").write_text("")
    assert main(["eval", "tiny-base", "--world", "countdown", "--out", str(tmp_path / "note" / "here")]) == 2
    assert f"{tmp_path / 'note'} is a file. Name another --out." in capsys.readouterr().err


def full_disk(*args) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_message_repeats_the_eval_command(run, capsys, tmp_path, monkeypatch):
    file = tmp_path / "my result.json"
    monkeypatch.setattr("tacit.runs.files.os.fsync", full_disk)
    assert main(["eval", str(run), "--out", str(tmp_path), "--json", str(file)]) == 2
    error = capsys.readouterr().err
    assert "the disk is full" in error and "--resume" not in error
    assert f"continue with `tacit eval {run} --out {tmp_path} --json '{file}'`." in error
    assert main(["eval", str(run), "--out", str(tmp_path)], again="tacit compare three.toml") == 2
    assert "continue with `tacit compare three.toml`." in capsys.readouterr().err, "it was only a part of that"


def test_full_disk_message_repeats_the_train_command(run, capsys, tmp_path, monkeypatch):
    place = tmp_path / "stopped"
    shutil.copytree(run, place, ignore=shutil.ignore_patterns("summary.json"))
    monkeypatch.setattr("tacit.runs.files.os.fsync", full_disk)
    assert main(["train", "--resume", str(place), "--keep", "3"]) == 2
    assert f"continue with `tacit train --resume {place}`." in capsys.readouterr().err
    assert main([*TRAIN, "--out", str(tmp_path / "new")]) == 2
    assert f"continue with `tacit {' '.join(TRAIN)} --out {tmp_path / 'new'}`." in capsys.readouterr().err, "nothing to resume"


def test_code_version_starts_with_package_version():
    assert code_version().startswith("0.1.0")
