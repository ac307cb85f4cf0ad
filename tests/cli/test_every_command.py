"""Run every command once, at the smallest size."""

from __future__ import annotations

import json
import urllib.request
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from forked import start

from tacit import pretraining
from tacit.cli.inspect import KINDS
from tacit.cli.main import COMMANDS, main
from tacit.companions.experience.bank import Bank, Origin
from tacit.companions.experience.retrieval import NgramEmbedding
from tacit.engines.models import bases
from tacit.engines.models.tiny import TinySettings

TINY = {"vocab": 512, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 2, "intermediate": 64}
RECIPE = f"""
world = "countdown"
model = "tiny"
tasks = 4
max_steps = 3
tiny = {{ {", ".join(f"{name} = {value}" for name, value in TINY.items())} }}
engine = {{ device = "cpu", threads = 1, lora_rank = 2 }}
sft = {{ steps = 2, batch = 4, tasks = 2 }}
schedule = {{ groups = 2, group_size = 2, iterations = 1 }}
evaluation = {{ tasks = 2, max_steps = 3, untrained = false }}
"""
COMPARISON = """
name = "pair"
description = "Two methods, one seed."
seeds = [0]
[worlds.countdown]
[methods.grpo]
[methods.plain]
name = "grpo"
std = "none"
[common]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a run that combines three methods, and its module."""
    place = tmp_path_factory.mktemp("commands")
    (place / "small.toml").write_text(RECIPE)
    methods = "reuserl+bipace+constant_context"
    assert main(["train", "--config", str(place / "small.toml"), "--method", methods, "--out", str(place / "run")]) == 0
    assert main(["modules", "export", str(place / "run"), "--out", str(place / "modules")]) == 0
    return place


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read().decode()


def train(place: Path) -> None:
    assert json.loads((place / "run" / "summary.json").read_text())["final"]["stage"] == "rl"
    assert main(["train", "--resume", "run"]) == 0


def evaluate(place: Path) -> None:
    assert main(["eval", "run", "--tasks", "2", "--json"]) == 0
    assert main(["eval", "expert", "--world", "countdown", "--tasks", "2"]) == 0


def compare(place: Path) -> None:
    text = COMPARISON + RECIPE.replace('world = "countdown"', "")
    (place / "pair.toml").write_text(text)
    assert main(["compare", "pair.toml", "--out", "pair"]) == 0
    assert (place / "pair" / "table.md").exists()


def play(place: Path) -> None:
    assert main(["play", "--policy", "run", "--max-steps", "2"]) in (0, 1)
    assert main(["play", "--policy", "expert", "--world", "cooking"]) == 0


def modules(place: Path) -> None:
    for words in (["list", "modules"], ["verify", "modules"], ["pack", "modules/unified", "unified.module"]):
        assert main(["modules", *words]) == 0
    assert main(["modules", "install", "unified.module", "--out", "installed"]) == 0


def serve(place: Path) -> None:
    server = start("serve", "modules", "--port", "0", "--engine.device", "cpu", TACIT_SERVE_TOKEN="a-token-for-tests")
    assert json.loads(fetch(server.address().split("/#")[0].rstrip("/") + "/health"))
    assert server.stop() == 0


def calibrate(place: Path) -> None:
    assert main(["calibrate", "run", "--layers=-1", "--poolings", "last", "--tasks-each", "2", "--min-clusters", "1"]) == 0


def inspect(place: Path) -> None:
    for kind in ("dictionary", "clusters"):
        assert main(["inspect", kind, "run"]) == 0
    for kind in KINDS:
        assert main(["inspect", kind, "--help"]) == 0


def bank(place: Path) -> None:
    embed = NgramEmbedding()
    with closing(Bank(place / "bank.sqlite", embed.name, embed.dimensions)) as filled:
        filled.add("look in the drawer first", embed(["look in the drawer first"])[0], Origin())
    for words in (["list", "bank.sqlite"], ["explain", "bank.sqlite", "1"]):
        assert main(["bank", *words]) == 0
    assert main(["bank", "export", "bank.sqlite", "out.jsonl"]) == 0
    assert "drawer" in (place / "out.jsonl").read_text()
    assert main(["bank", "remove", "bank.sqlite", "1"]) == 0


def watch(place: Path) -> None:
    server = start("watch", "run", "--port", "0")
    assert "countdown" in fetch(server.address())
    assert server.stop() == 0


def report(place: Path) -> None:
    assert main(["report", "run"]) == 0
    assert "<html" in (place / "run" / "report.html").read_text()


def runs(place: Path) -> None:
    assert main(["runs", "pack", "run", "--out", "run.pack"]) == 0
    assert main(["runs", "unpack", "run.pack", "--out", "again"]) == 0
    assert (place / "again" / "settings.json").read_text() == (place / "run" / "settings.json").read_text()


def plan(place: Path) -> None:
    assert main(["plan", "--model", "0.5B", "--world", "alfworld", "--gpus", "2", "--json", "plan.json"]) == 0
    assert json.loads((place / "plan.json").read_text())


def list_(place: Path) -> None:
    for words in ([], ["recipes"]):
        assert main(["list", *words]) == 0


def prepare(place: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bases.BASE_SIZES, "tiny-base", TinySettings(**TINY, context=512))
        patch.setattr(pretraining, "EPISODES", {"alfworld": 2, "cooking": 2, "countdown": 2})
        patch.setattr(pretraining, "sample_texts", partial(pretraining.sample_texts, each=50))
        patch.setattr(pretraining, "measure_reading", partial(pretraining.measure_reading, each=2))
        words = ["--size", "tiny-base", "--steps", "2", "--rows", "4", "--share", "0.5", "--processes", "1", "--device", "cpu"]
        assert main(["prepare", "base", "base", *words]) == 0
    assert (place / "base" / "model.safetensors").exists()


HOW = {
    **{step.__name__.rstrip("_"): step for step in (train, compare, play, modules, serve, calibrate, inspect, bank)},
    **{step.__name__.rstrip("_"): step for step in (watch, report, runs, plan, list_, prepare)},
    "eval": evaluate,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(place, command, monkeypatch, capsys):
    """A command without an entry in HOW fails."""
    monkeypatch.chdir(place)
    HOW[command](place)
    assert "Traceback" not in "".join(capsys.readouterr())
