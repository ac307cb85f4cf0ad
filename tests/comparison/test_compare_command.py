"""`tacit compare` with real runs: complete, killed and resumed, with a failing run, and with differing panels."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from forked import start
from small_comparison import SMALL, write

from tacit.cli.main import main
from tacit.runs.directory import read_settings, read_summary
from tacit.runs.files import write_json

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """One cache for all processes of these tests, and one thread per process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("COLUMNS", "160")
        yield


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("file") / "small.toml", SMALL.replace("seeds = [0, 1, 2]", "seeds = [0, 1]"))


def compare(file: Path, out: Path, *words: str, code: int = 0) -> str:
    """Run the command in this process and return its output. The training runs are subprocesses."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        ended = main(["compare", str(file), "--out", str(out), "--jobs", "2", *words])
    assert ended == code, output.getvalue()
    return output.getvalue()


def read(out: Path) -> dict[str, Any]:
    return json.loads((out / "comparison.json").read_text())


def finished(out: Path) -> int:
    return len(list(out.glob("runs/*/*/*/summary.json")))


@pytest.fixture(scope="module")
def whole(file, tmp_path_factory) -> tuple[Path, str]:
    """An uninterrupted comparison and its output."""
    out = tmp_path_factory.mktemp("whole") / "comparison"
    return out, compare(file, out)


def test_comparison_writes_table_plots_and_results(whole):
    out, printed = whole
    found = read(out)
    assert found["complete"] and len(found["cells"]) == 12 and len(found["table"]) == 6
    assert {c["status"] for c in found["cells"]} == {"finished"} and found["starts"]["same"]["checkpoint"] == "sft-000050"
    for name in ("table.md", "table.csv", "plots/learning-same.png", "plots/thresholds-next.svg"):
        assert (out / name).stat().st_size > 100
    assert {each["setting"]: each["named_by"] for each in found["differences"]["same"]} == {
        "success_reward": ["ppo"], "invalid_penalty": ["ppo"], "std": ["plain"], "kl": ["plain"],
        "schedule.minibatches": ["ppo"], "engine.value_head": [],
    }  # fmt: skip
    assert "- std: population in grpo, ppo; none in plain" in (out / "table.md").read_text().splitlines()
    assert printed.count("settings in which the methods differ in next:") == 2  # before the runs and next to the table
    assert re.search(r"next/ppo/1 finished after .*, success \d+\.\d% \(", printed)
    assert printed.count("begins") == 13 and "resumes" not in printed
    for cell in found["cells"]:
        summary = read_summary(out / cell["run"])
        assert cell["final"] == summary["final"] and cell["digest"] == summary["digest"]
        assert sum(cell["outcomes"]) == summary["final"]["successes"] and len(cell["outcomes"]) == 24
        assert [p["step"] for p in cell["curve"]] == [0, 1, 2] and cell["command"][:2] == ["tacit", "train"]
        assert cell["settings"]["seed"] == cell["seed"] and cell["versions"]["tacit"]
    assert len({c["digest"] for c in found["cells"]}) == 12
    assert f"Next: tacit report {out} " in printed and f"writes {out}/report.html" in printed


def test_runs_start_from_the_worlds_shared_start(whole):
    out, _ = whole
    found = read(out)
    taught = found["starts"]["same"]["evaluation"]
    assert taught["stage"] == "sft" and all(c["start"] == taught for c in found["cells"] if c["world"] == "same")
    # The start has learned something, so runs that lost its weights would start lower.
    assert taught["success"] > 0.3
    ppo = read_settings(out / "runs/same/ppo/0")
    assert ppo["engine"]["value_head"] and ppo["prompt"]["style"] == "bare" and ppo["prompt"]["wording"] == "terse"
    assert all(c["start"]["seed"] == c["seed"] for c in found["cells"] if c["world"] == "next")


def test_runs_of_a_comparison_can_be_evaluated(whole, capsys):
    out, _ = whole
    assert main(["eval", str(out / "runs/same/ppo/1"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["equals_run"] is True


def test_repeated_comparison_runs_nothing(whole, file):
    out, _ = whole
    before = (out / "table.csv").read_bytes()
    printed = compare(file, out)
    assert "begins" not in printed and "resumes" not in printed and (out / "table.csv").read_bytes() == before


def test_killed_moved_and_stopped_comparison_resumes_to_the_same_table(whole, file, tmp_path):
    out = tmp_path / "killed"
    # A new session, so that killpg stops the command and all its runs at once.
    command = [sys.executable, "-m", "tacit.cli.main", "compare", str(file), "--out", str(out), "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    deadline = time.monotonic() + 280
    while finished(out) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    printed, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL and 2 <= finished(out) < 12
    assert "Warning" not in printed, "of it, nor of its runs until they have a log of their own"

    out = out.rename(tmp_path / "moved")
    going_on = start("compare", file, "--out", out, "--jobs", "2")
    going_on.until(lambda: finished(out) >= 6)
    going_on.terminate()  # the command only; it must stop its own runs
    assert going_on.wait() == 143 and "stopped. The same command resumes it" in going_on.out + going_on.err
    assert not read(out)["complete"] and 6 <= finished(out) < 12
    for lock in out.glob("runs/**/.lock"):
        with lock.open() as lock_file:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if a process still writes

    printed = compare(file, out)
    assert 1 <= printed.count("begins") + printed.count("resumes") <= 6
    for name in ("table.csv", "plots/learning-same.svg", "plots/thresholds-next.svg"):
        assert (out / name).read_bytes() == (whole[0] / name).read_bytes()
    ours, theirs = read(out), read(whole[0])
    assert ours["table"] == theirs["table"] and ours["complete"]
    assert [c["digest"] for c in ours["cells"]] == [c["digest"] for c in theirs["cells"]]


def test_failed_run_is_reported_and_the_others_continue(tmp_path):
    method = tmp_path / "broken.py"
    method.write_text(
        "from dataclasses import dataclass\n"
        "from tacit.core.method import replaces\n"
        "from tacit.core.errors import TacitError\n"
        "from tacit.core.method import CreditTerm\n"
        "from tacit.methods.grpo import GRPO\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Broken(GRPO):\n"
        "    def changes(self, world, resources):\n"
        "        return (replaces('credits', 'episode credit', Stumbles()),)\n\n\n"
        "class Stumbles(CreditTerm):\n"
        "    def __call__(self, *anything, **more):\n"
        "        raise TacitError('the ladder was pulled away.')\n"
    )
    text = SMALL.replace("seeds = [0, 1, 2]", "seeds = [0]")
    text = text.replace("[methods.ppo]\n", f"[methods.broken]\nname = '{method}:Broken'\n")
    out = tmp_path / "out"
    printed = compare(write(tmp_path / "failing.toml", text), out, "--only", "next/broken,next/grpo", "--trust-code", code=1)
    assert "next/broken/0 failed after" in printed and "the ladder was pulled away." in printed
    assert "missing: broken, seed 0: failed: the ladder was pulled away." in " ".join(printed.split())
    assert "missing: start: missing" in printed, "of the world that was not selected"
    assert "1 of 2 runs failed; see console.log of each" in printed
    assert "same/start" not in printed
    found = read(out)
    assert {(c["world"], c["method"]): c["status"] for c in found["cells"]} == {
        ("same", "grpo"): "missing",
        ("same", "plain"): "missing",
        ("same", "broken"): "missing",
        ("next", "grpo"): "finished",
        ("next", "plain"): "missing",
        ("next", "broken"): "failed",
    }
    row = found["table"][-1]
    assert not found["complete"] and row["missing"] == [0] and row["final"] is None and row["against"] is None
    page = (out / "table.md").read_text()
    assert "- broken, seed 0: failed: the ladder was pulled away." in page and "Nothing has been measured here yet." in page


def test_changed_panel_is_refused_with_both_hashes(whole, file, tmp_path, capsys):
    out = tmp_path / "changed"
    shutil.copytree(whole[0] / "runs", out / "runs")
    place = out / "runs/next/plain/1"
    summary = read_summary(place)
    known = summary["final"]["panel_hash"]
    for evaluation in summary["evaluations"]:
        evaluation["panel_hash"] = "0123456789abcdef"
    write_json(place / "summary.json", summary)
    assert main(["compare", str(file), "--out", str(out)]) == 2
    errors = capsys.readouterr().err
    assert (
        known in errors and "0123456789abcdef" in errors and "runs/next/plain/1" in errors and not (out / "table.md").exists()
    )


def test_dry_run_writes_nothing(file, tmp_path, capsys):
    assert main(["compare", str(file), "--out", str(tmp_path / "none"), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "same: 50 steps of imitation, once, seed 0" in printed and not (tmp_path / "none").exists()
    assert f"tacit watch {tmp_path / 'none' / 'runs'}/" in printed, "where its runs will lie"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["{file}", "--jobs", "0"], "--jobs 0 must be at least 1"),
        (["{file}", "--only", "grop"], "Did you mean 'grpo'"),
        (["missing.toml"], "the settings file missing.toml does not exist. `tacit list recipes` shows the packaged recipes."),
        (["{file}", "--job", "2"], "Did you mean --jobs"),
        ([], "required: FILE"),
    ],
)
def test_compare_refuses_bad_arguments(file, words, reason, capsys):
    assert main(["compare", *(word.format(file=file) for word in words)]) == 2
    assert reason in capsys.readouterr().err


def test_help_shows_the_file_format(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["compare", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "[methods.grpo]" in printed and "--jobs N" in printed and max(map(len, printed.splitlines())) <= 100


def test_example_comparison_can_be_planned():
    from tacit.comparison.plan import make_plan
    from tacit.config.recipe import comparison_recipe, read_document

    plan = make_plan(read_document(comparison_recipe("example")))
    assert len(plan.cells) == 18 and len(plan.starts) == 2 and plan.notes == ()
