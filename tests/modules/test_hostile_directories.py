"""Untrusted runs, modules and models: no command executes their code without --trust-code."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from small_modules import change_manifest

import tacit
from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.core.trust import VARIABLE
from tacit.engines.models.tiny import hash_file
from tacit.modules import Agent, read_module
from tacit.modules.module import MANIFEST, hash_manifest
from tacit.modules.sharing import pack
from tacit.report.live import render_recording
from tacit.report.page import Live
from tacit.report.run_page import render_run
from tacit.serving.catalog import Catalog

CANARY = """
import os
os.close(os.open({ran!r}, os.O_CREAT))
from tacit.worlds.countdown import ENVIRONMENT
from tacit.methods.grpo import GRPO
from tacit.engines import LOCAL
"""


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that a canary creates. Canaries are in the test's directory, in a package and in the working directory."""
    monkeypatch.delenv(VARIABLE, raising=False)
    text = CANARY.format(ran=str(tmp_path / "ran"))
    for place in ("evil.py", "packages/evil_package/__init__.py", "packages/evil_package/world.py", "here/evil.py"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "ran"
    assert not (tmp_path / "ran").exists(), "the canary ran"


NAMES = (
    "{place}/evil.py:{own}",
    "evil.py:{own}",
    "./evil.py:{own}",
    "evil_package:{own}",
    "evil_package.world:{own}",
    "tacit.modules.work:WORK/../../../../../../../../../..{place}/evil.py:{own}",
    "tacit.modules.carrying:DRAFT_0123456789abcdef/../..{place}/evil.py:{own}",
    "tacit.worlds.countdown:ENVIRONMENT:../evil.py:{own}",
    "countdown:{place}/evil.py:{own}",
    "tacit.__main__:{own}",
)
RUN: dict[str, Any] = {
    "world": "countdown",
    "model": "tiny",
    "method": {"name": "grpo"},
    "schedule": {"iterations": 1},
    "sft": {"steps": 1},
    "engine": {"name": "local"},
}
IN_RUNS: dict[str, Callable[[Callable[[str], str]], dict[str, Any]]] = {
    "world": lambda name: {"world": name("ENVIRONMENT")},
    "mixture": lambda name: {"world": f"countdown=0.5,{name('ENVIRONMENT')}=0.5"},
    "method": lambda name: {"method": {"name": name("GRPO")}},
    "methods": lambda name: {"method": {"name": f"grpo+{name('GRPO')}"}},
    "engine": lambda name: {"engine": {"name": name("LOCAL")}},
    "second policy": lambda name: {"policies": {"extractor": {"engine": {"name": name("LOCAL")}}}},
}


def write_run(path: Path, changes: dict[str, Any]) -> Path:
    (path / "trajectories").mkdir(parents=True, exist_ok=True)
    (path / "settings.json").write_text(json.dumps({**RUN, **changes}))
    (path / "metrics.jsonl").write_text('{"stage": "rl", "step": 1, "success": 0.5}\n')
    return path


def look_at_run(run: Path) -> None:
    """Every command that opens a run. Reports are written; commands that need the world refuse."""
    for command in (
        ["eval", run],
        ["play", "--policy", run],
        ["train", "--resume", run],
        ["modules", "export", run, "--out", run.parent / "modules"],
        ["calibrate", run],
        *(["inspect", what, run] for what in ("clusters", "credit", "dictionary", "skills")),
        ["bank", "list", run],
        ["report", run],
    ):
        code = main([str(word) for word in command])
        assert code == (0 if command[0] == "report" else 2), command
    render_run(run, live=Live("", "stamp", None, ""))
    opened = tacit.open_run(run)
    for look in (lambda: opened.worlds, opened.trajectories, opened.policy, opened.evaluate, opened.resume):
        with pytest.raises(TacitError):
            look()


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("where", IN_RUNS)
def test_opening_a_run_executes_none_of_its_code(ran: Path, tmp_path: Path, where: str, capsys) -> None:
    run = write_run(tmp_path / "run", IN_RUNS[where](lambda own: f"{tmp_path}/evil.py:{own}"))
    look_at_run(run)
    errors = capsys.readouterr().err
    assert "Traceback" not in errors and "pass --trust-code if you trust it" in errors
    inside = write_run(tmp_path / "run", IN_RUNS[where](lambda own: f"{tmp_path}/run/evil.py:{own}"))
    shutil.copy(tmp_path / "evil.py", inside)
    assert main(["report", str(inside)]) == 0 and main(["eval", str(inside)]) == 2


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", NAMES)
def test_no_spelling_of_a_code_name_is_executed(ran: Path, tmp_path: Path, name: str, monkeypatch) -> None:
    for where, own in (("world", "ENVIRONMENT"), ("method", "GRPO"), ("engine", "LOCAL")):
        run = write_run(tmp_path / "run", IN_RUNS[where](lambda own: name.format(place=tmp_path, own=own)))
        assert main(["report", str(run)]) == 0 and main(["eval", str(run)]) == 2, own
    monkeypatch.setenv(VARIABLE, "1")
    assert main(["report", str(run)]) == 0, "pages import nothing whatever is trusted"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("junk", ["grpo", [], 3, None, [[]]])
def test_malformed_settings_give_one_line_errors(ran: Path, tmp_path: Path, junk: Any, capsys) -> None:
    for name in ("method", "engine", "schedule", "policies"):
        run = write_run(tmp_path / "run", {name: junk})
        for command in (["eval"], ["train", "--resume"], ["inspect", "clusters"]):
            assert main([*command, str(run)]) == 2 and main(["report", str(run)]) == 0
            assert capsys.readouterr().err.count("\n") == 1


def test_code_runs_with_trust_code(ran: Path, tmp_path: Path, capsys) -> None:
    run = write_run(tmp_path / "run", {"world": f"{tmp_path}/evil.py:ENVIRONMENT"})
    assert main(["eval", str(run), "--trust-code"]) == 2 and "has no checkpoint yet" in capsys.readouterr().err
    assert ran.exists()
    ran.unlink()


def test_untrusted_comparison_is_reported_without_its_code(ran: Path, tmp_path: Path) -> None:
    settings = {**RUN, "world": f"{tmp_path}/evil.py:ENVIRONMENT"}
    cell = {"world": "w", "method": "m", "seed": 0, "status": "finished", "run": "run", "settings": settings}
    write_run(tmp_path / "run", settings)
    (tmp_path / "comparison.json").write_text(json.dumps({"format": 1, "cells": [cell], "table": []}))
    assert main(["report", str(tmp_path), "--runs"]) == 0


IN_MODULES: dict[str, Callable[[dict[str, Any], Callable[[str], str]], dict[str, Any]]] = {
    "world": lambda module, name: {"world": name("ENVIRONMENT")},
    "method": lambda module, name: _with_settings(module, method={"name": name("GRPO")}),
    "engine": lambda module, name: _with_settings(module, engine={"name": name("LOCAL")}),
    "draft": lambda module, name: {
        "draft": {"kind": "tracker", "name": "d", "world": name("ENVIRONMENT"), "block": "", "files": ["d.py.txt"]},
        "files": {**module["files"], "d.py.txt": "0" * 64},
    },
}


def _with_settings(module: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"run": {**module["run"], "settings": {**module["run"]["settings"], **changes}}}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("where", IN_MODULES)
@pytest.mark.parametrize("name", [NAMES[0], NAMES[4], NAMES[5]])
def test_opening_a_module_executes_none_of_its_code(
    modules, ran: Path, tmp_path: Path, where: str, name: str, capsys, monkeypatch
) -> None:
    place = tmp_path / "theirs" / "heat"
    shutil.copytree(modules / "heat", place)
    module = json.loads((place / MANIFEST).read_text())
    changes = IN_MODULES[where](module, lambda own: name.format(place=tmp_path, own=own))
    if "draft" in changes:
        (place / "d.py.txt").write_text("x = 1\n")
    (place / MANIFEST).write_text(json.dumps({**module, **changes}))
    for command in (
        ["modules", "list", place.parent],
        ["modules", "verify", place.parent],
        ["modules", "pack", place, tmp_path / "heat.tacit", "--replace", "--base-license", "MIT"],
        ["modules", "install", place.parent, "--out", tmp_path / "out", "--yes"],
        ["modules", "cost", place.parent],
        ["eval", place.parent],
        ["play", "--policy", place.parent],
    ):
        main([str(word) for word in command])
    _, refused = Catalog([place.parent], cast(Any, None)).read_directories()
    assert refused or where in ("method", "engine"), "`tacit serve` needs neither"
    with pytest.raises(TacitError):
        Agent.load(place) if where == "world" else main_refuses(
            ["modules", "install", str(place), "--out", str(tmp_path / "o")]
        )
    assert "Traceback" not in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("rank", [10**9, 8, "4", None])
def test_wrong_adapter_rank_is_refused_before_allocation(modules, tmp_path: Path, rank: Any, capsys) -> None:
    place = tmp_path / "theirs" / "heat"
    shutil.copytree(modules / "heat", place)
    config = place / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "r": rank}))
    module = json.loads((place / MANIFEST).read_text())
    change_manifest(place, files={**module["files"], config.name: hash_file(config)})
    for command in (
        ["modules", "verify", place.parent],
        ["modules", "pack", place, tmp_path / "heat.tacit", "--base-license", "MIT"],
        ["modules", "install", place.parent, "--out", tmp_path / "out"],
        ["eval", place.parent],
        ["play", "--policy", place.parent],
    ):
        assert main([str(word) for word in command]) != 0
        output = "".join(capsys.readouterr())
        assert f"claims rank {rank}, but its weights have 4" in " ".join(output.split()) and "Traceback" not in output
    _, refused = Catalog([place.parent], cast(Any, None)).read_directories()
    assert "claims rank" in "".join(refused.values())
    with pytest.raises(TacitError, match="claims rank"):
        Agent.load(place).begin("heat some apple and put it in fridge.", "heat")


def test_huge_lora_rank_in_a_run_is_refused_before_loading(tmp_path: Path, capsys) -> None:
    run = write_run(tmp_path / "run", {"engine": {"name": "local", "lora_rank": 10**9}})
    for command in (["eval"], ["play", "--policy"], ["train", "--resume"]):
        assert main([*command, str(run)]) == 2
        assert "lora_rank = 1000000000 must be at most 4096" in capsys.readouterr().err


def main_refuses(command: list[str]) -> None:
    assert main(command) == 2
    raise TacitError("refused")


class Touch:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors", "training_args.bin", "adapter_model.bin"])
def test_model_directory_is_not_unpickled(ran: Path, tmp_path: Path, file: str, capsys) -> None:
    model = tmp_path / "model"
    model.mkdir()
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 16}
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes}))
    (model / file).write_bytes(pickle.dumps(Touch(ran)))
    command = ["train", "--world", "countdown", "--model", str(model), "--out", str(tmp_path / "run"), "--sft.steps", "1"]
    assert main(command) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_untrusted_recording_is_rendered_without_its_code(ran: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"world": f"{tmp_path}/evil.py:ENVIRONMENT"})
    (run / "trajectories" / "rl-000001.jsonl.gz").write_bytes(b"")
    assert "rl-000001" in render_recording(run, "rl-000001", 4, Live("", "stamp", None, ""))


def test_untrusted_world_of_a_packed_module_is_refused(modules, ran: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    shutil.copytree(modules / "heat", tmp_path / "heat")
    pack(read_module(tmp_path / "heat"), tmp_path / "good.tacit")
    module = json.loads((tmp_path / "heat" / MANIFEST).read_text())
    module["world"] = f"{tmp_path}/evil.py:ENVIRONMENT"
    (tmp_path / "heat" / MANIFEST).write_text(json.dumps({**module, "sha256": hash_manifest(module)}))
    with pytest.raises(TacitError, match="pass --trust-code"):
        pack(read_module(tmp_path / "heat"), tmp_path / "evil.tacit")
