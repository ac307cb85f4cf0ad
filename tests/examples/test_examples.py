"""Every script in examples/ runs as a program. Scripts that need an optional package are tested in tests/integrations."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_server import says, serving
from forked import run_script, start
from templates import TOOLS, talking_model

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).resolve().parents[2] / "examples"
IN_TESTS_OF_INTEGRATIONS = {"gymnasium_integration", "openenv_integration", "verifiers_integration", "trl_alfworld"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The scripts write to the working directory."""
    monkeypatch.chdir(tmp_path)


def example(name: str, *words: str | Path) -> str:
    return run_script(FOLDER / f"{name}.py", *words).finish()


def test_all_examples_are_listed():
    here = {"endpoint", "lora", "own_method", "own_world", "repair_code", "skill_module"}
    assert {file.stem for file in FOLDER.glob("*.py")} == here | IN_TESTS_OF_INTEGRATIONS


def test_own_world_example(tmp_path):
    output = example("own_world", "--steps", "3", "--iterations", "1", "--panel", "8")
    assert "the expert: success 100.0%" in output and "guessed as" in output
    assert (tmp_path / "runs/guess/summary.json").is_file()
    start("eval", "runs/guess", "--tasks", "2", "--trust-code").finish()  # the run finds its world again


def test_repair_code_example():
    output = example("repair_code", "--tasks", "1", "--experts", "oracle,none")
    assert output.splitlines()[-2:] == ["oracle: 1 of 1 solved", "none: 0 of 1 solved"] and "FAIL_TO_PASS" in output


def test_own_method_example(tmp_path):
    output = example("own_method", "--steps", "3", "--iterations", "1", "--panel", "4")
    assert [line.partition(":")[0] for line in output.splitlines()[-3:]] == ["grpo", "hurry", "rloo+hurry"]


def test_endpoint_example(tmp_path):
    with serving(lambda body: (200, says("<think>hm</think><action>reset</action>"))) as server:
        output = example("endpoint", "--url", server.url, "--model", "some-model", "--tasks", "2")
    ways = {("tools" in request, request["messages"][0]["role"]) for request in server.requests}
    assert ways == {(False, "user"), (False, "system"), (True, "system")}
    assert "tags: success" in output and output.count("100% of") == 2 and "tool calls: success" in output and "0% of" in output


def test_lora_example(tmp_path):
    model = talking_model(tmp_path / "model", TOOLS)
    output = example("lora", "--model", model, "--rehearse")
    assert "iteration 1: success" in output and "it wrote:" in output
    assert (tmp_path / "runs/lora/checkpoints/rl-000001").is_dir()


def test_skill_module_example(tmp_path):
    output = example("skill_module", "--steps", "3")
    assert output.count("solved") == 3
    assert example("skill_module").count("solved") == 3, "kept from the first time"
