"""`tacit modules cost`: the same episodes by modules and by whoever is prompted, and what left the machine for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_server import serving

from tacit.cli.main import main
from tacit.cli.modules import leaving
from tacit.modules import read_module
from tacit.modules.cost import CostRow


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def cost(modules: Path, out: Path, *flags: str) -> dict[str, Any]:
    assert main(["modules", "cost", str(modules), "--engine.device", "cpu", "--json", str(out), *flags]) == 0
    return json.loads(out.read_text())


@pytest.mark.slow
def test_a_module_costs_what_it_did_when_it_was_measured_and_react_reads_more_on_its_turns(modules, tmp_path, capsys):
    found = cost(modules / "heat", tmp_path / "cost.json")
    module = read_module(modules / "heat")
    score = module.scores["rl"]
    own, one, full = found["rows"]
    assert (found["panel_hash"], found["episodes"]) == (score["panel_hash"], 4)
    assert own["prompt_tokens"] == score["prompt_tokens"] and own["completion_tokens"] == score["completion_tokens"]
    assert own["tokens"] == score["episode_prompt_tokens"] + score["episode_completion_tokens"]
    assert one["name"] == "its turns as ReAct-1step with actions" and one["steps"] == own["steps"]
    assert own["prompt_tokens"] < one["prompt_tokens"] < full["prompt_tokens"] and one["seconds"] is None
    assert own["seconds"] > 0 and own["peak_bytes"] > 10_000_000 and own["hosts"] == [] and own["sent_bytes"] == 0
    assert (
        found["disk"] == {str(modules / "heat"): module.size, "base tiny": found["disk"]["base tiny"]}
        and found["disk"]["base tiny"]
    )
    said = capsys.readouterr().out
    assert (
        "heat: nothing; no connection to another machine was made" in said and f"{one['tokens'] / own['tokens']:.2f}×" in said
    )


@pytest.mark.slow
def test_a_model_behind_an_endpoint_plays_the_same_tasks_and_is_sent_what_is_counted(modules, tmp_path, capsys):
    def reply(body: dict[str, Any]) -> tuple[int, Any]:
        words = "I look around.\n<action>look</action>"
        answer = {"message": {"role": "assistant", "content": words}, "finish_reason": "stop"}
        return 200, {"choices": [answer], "usage": {"prompt_tokens": 1000, "completion_tokens": 50}}

    with serving(reply) as server:
        told = ("--endpoint", server.url, "--model", "large", "--tasks", "2", "--key-variable", "NO_KEY")
        found = cost(modules / "heat", tmp_path / "cost.json", *told)
    own, _, _, one, full = found["rows"]
    assert [one["name"], full["name"]] == ["large, ReAct-1step", "large, ReAct-full"]
    for row in (one, full):
        assert (row["steps"], row["prompt_tokens"], row["completion_tokens"]) == (4, 1000, 50)
        assert row["tokens"] == 4 * 1050 and row["hosts"] == ["127.0.0.1"] and row["peak_bytes"] is None
    prompts = ["\n".join(m["content"] for m in asked["messages"]) for asked in server.asked]
    assert len(prompts) == 2 * 2 * 4
    for row, own_prompts in ((one, prompts[:8]), (full, prompts[8:])):
        assert row["sent_bytes"] == sum(len(prompt.encode()) for prompt in own_prompts) / 2
    assert full["sent_bytes"] > one["sent_bytes"], "all turns are read again"
    said = capsys.readouterr().out
    assert "bytes of prompts per episode (task, observations, actions) to 127.0.0.1, which is this machine" in said
    assert f"{4200 / own['tokens']:.2f}×" in said and "elsewhere" in said


@pytest.mark.slow
def test_a_model_here_is_prompted_both_ways_and_its_size_is_said(modules, tmp_path):
    few = (
        "--tasks",
        "1",
        "--max-steps",
        "2",
        "--max-tokens",
        "4",
        "--wording",
        "terse",
        "--no-actions",
        "--engine.threads",
        "1",
    )
    found = cost(modules, tmp_path / "cost.json", "--families", "heat", "--against", "tiny-base-1", *few)
    names = [row["name"] for row in found["rows"]]
    assert names == [
        "modules", "its turns as ReAct-1step without actions", "its turns as ReAct-full without actions",
        "tiny-base-1, ReAct-1step", "tiny-base-1, ReAct-full",
    ]  # fmt: skip
    assert all(row["steps"] <= 2 and row["completion_tokens"] <= 4 for row in found["rows"][3:])
    assert found["rows"][3]["hosts"] == [] and found["rows"][3]["peak_bytes"] > 10_000_000
    assert 1_000_000 < found["disk"]["tiny-base-1"] < 10_000_000


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--endpoint", "http://127.0.0.1:9"], "--endpoint and --model belong together"),
        (["--against", "no-such-model"], "unknown model 'no-such-model'"),
        (["--against", "tiny-base", "--wording", "sung"], "'sung'"),
        (["--batch", "0"], "--batch"),
    ],
)
def test_what_cannot_be_weighed_is_said_before_anybody_plays(modules, capsys, monkeypatch, flags, words):
    monkeypatch.setattr("tacit.modules.cost._run_job", lambda job: pytest.fail(f"{job.target} plays"))
    assert main(["modules", "cost", str(modules / "heat"), "--tasks", "1", "--max-steps", "1", *flags]) == 2
    assert words in capsys.readouterr().err


def test_connections_are_noticed_whoever_makes_them():
    script = """
import socket, urllib.request
from tacit.modules.cost import record_hosts
hosts = record_hosts()
listener = socket.create_server(("127.0.0.1", 0))
socket.create_connection(listener.getsockname())
try:
    urllib.request.urlopen("http://somewhere.invalid/")
except OSError:
    pass
print(list(hosts))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.stdout.strip() == "['127.0.0.1', 'somewhere.invalid']", ran.stderr


def test_what_leaves_is_said_as_it_was_heard():
    row = CostRow("m", 1.0, (0.5, 1.0), 3.0, 10.0, 2.0, 36.0)
    assert leaving(row).startswith("nothing; no connection")
    away = CostRow("m", 1.0, (0.5, 1.0), 3.0, 10.0, 2.0, 36.0, hosts=("api.example.com", "127.0.0.1"), sent_bytes=1234.4)
    assert leaving(away) == "1,234 bytes of prompts per episode (task, observations, actions) to api.example.com"
    files = CostRow("m", 1.0, (0.5, 1.0), 3.0, 10.0, 2.0, 36.0, hosts=("huggingface.co",))
    assert leaving(files) == "nothing of the episodes; it asked huggingface.co (for files of the model)"
