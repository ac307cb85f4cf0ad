"""Every script of examples/ runs, as a newcomer would start it. Those that need an extra are started in tests/doors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from chat_server import says, serving
from templates import TOOLS, talking_model

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).resolve().parents[2] / "examples"
IN_TESTS_OF_DOORS = {"gymnasium_door", "openenv_door", "verifiers_door", "trl_alfworld"}


def start(name: str, *words: str | Path, where: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER.parent)}
    command = [sys.executable, str(FOLDER / f"{name}.py"), *map(str, words)]
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_these_are_all():
    here = {"endpoint", "lora", "own_method", "own_world", "skill_module"}
    assert {file.stem for file in FOLDER.glob("*.py")} == here | IN_TESTS_OF_DOORS


def test_own_world(tmp_path):
    told = start("own_world", "--steps", "3", "--iterations", "1", "--panel", "8", where=tmp_path)
    assert "the expert: success 100.0%" in told and "guessed as" in told and (tmp_path / "runs/guess/summary.json").is_file()
    command = [sys.executable, "-m", "tacit", "eval", "runs/guess", "--tasks", "2"]
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, "the world is found again: " + done.stderr


def test_own_method(tmp_path):
    told = start("own_method", "--steps", "3", "--iterations", "1", "--panel", "4", where=tmp_path)
    assert [line.partition(":")[0] for line in told.splitlines()[-3:]] == ["grpo", "hurry", "rloo+hurry"]


def test_endpoint(tmp_path):
    with serving(lambda body: (200, says("<think>hm</think><action>reset</action>"))) as server:
        told = start("endpoint", "--url", server.url, "--model", "some-model", "--tasks", "2", where=tmp_path)
    ways = {("tools" in asked, asked["messages"][0]["role"]) for asked in server.asked}
    assert ways == {(False, "user"), (False, "system"), (True, "system")}
    assert "tags: success" in told and told.count("100% of") == 2 and "tool calls: success" in told and "0% of" in told


def test_lora(tmp_path):
    model = talking_model(tmp_path / "model", TOOLS)
    told = start("lora", "--model", model, "--rehearse", where=tmp_path)
    assert "iteration 1: success" in told and "it wrote:" in told
    assert (tmp_path / "runs/lora/checkpoints/rl-000001").is_dir()


def test_skill_module(tmp_path):
    told = start("skill_module", "--steps", "3", where=tmp_path)
    assert told.count("solved") == 3
    assert start("skill_module", where=tmp_path).count("solved") == 3, "kept from the first time"
