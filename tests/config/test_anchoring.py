"""Runs store absolute paths, so they work from another working directory."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tacit.cli.main import main
from tacit.config.recipe import Recipe

HERE = Path(__file__).parents[1]
TRAIN = [
    *("train", "--world", "letters_here.py:SAME", "--model", "tiny", "--sft.steps", "2", "--sft.tasks", "8"),
    *("--iterations", "1", "--groups", "2", "--group-size", "2", "--evaluation.tasks", "4", "--engine.threads", "1"),
    *("--tiny.vocab", "512", "--tiny.hidden", "16", "--tiny.layers", "1", "--tiny.heads", "1", "--tiny.kv-heads", "1"),
]


@pytest.fixture
def away(tmp_path, monkeypatch):
    """A directory with a custom world, and an empty one beside it. Starts in the first."""
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    shutil.copy(HERE / "guessing.py", "letters_here.py")
    yield tmp_path
    sys.modules.pop("letters_here", None)


def test_run_in_a_custom_world_works_from_another_directory(away, monkeypatch, capsys):
    assert main([*TRAIN, "--out", "run"]) == 0
    monkeypatch.chdir(away / "elsewhere")
    sys.modules.pop("letters_here")
    run = str(away / "home" / "run")
    assert main(["eval", run, "--out", str(away / "kept"), "--trust-code"]) == 0, capsys.readouterr().err
    more = ["train", "--resume", run, "--iterations", "2"]
    assert main(more) == 2
    assert f"would import SAME from {away / 'home' / 'letters_here.py'}; pass --trust-code if" in capsys.readouterr().err
    assert main([*more, "--trust-code"]) == 0, capsys.readouterr().err
    assert json.loads((Path(run) / "summary.json").read_text())["iterations"] == 2


def test_resuming_a_finished_run_prints_the_trust_flag_without_importing_its_world(away, capsys):
    assert main([*TRAIN, "--out", "run"]) == 0
    sys.modules.pop("letters_here")
    capsys.readouterr()
    assert main(["train", "--resume", "run"]) == 0
    assert "Next: tacit eval run --trust-code " in capsys.readouterr().out
    assert "letters_here" not in sys.modules


def test_file_paths_become_absolute_and_names_stay(away):
    home = away / "home"
    for name in ("panel.json", "shown.jsonl"):
        Path(name).write_text("")
    for name in ("model", "tiny", "extractor"):
        Path(name).mkdir()
    settings = {
        "world": "letters_here.py:SAME=0.5,countdown=0.5",
        "model": "model",
        "method": {"name": "grpo"},
        "sft": {"steps": 3, "from": "shown.jsonl"},
        "worlds": {"letters_here.py:SAME": {"evaluation": {"panel": "panel.json"}}},
        "policies": {"extractor": {"model": "extractor"}},
    }
    document = Recipe.from_json(settings).to_json()
    assert document["world"] == f"{home}/letters_here.py:SAME=0.5,countdown=0.5"
    assert (document["model"], document["policies"]["extractor"]["model"]) == (f"{home}/model", f"{home}/extractor")
    assert document["sft"]["from"] == f"{home}/shown.jsonl" and document["evaluation"]["panel"] == ""
    assert document["worlds"][f"{home}/letters_here.py:SAME"]["evaluation"]["panel"] == f"{home}/panel.json"
    assert Recipe.from_json(document).to_json() == document
    plain = Recipe.from_json({"world": "countdown", "model": "tiny"}).to_json()
    assert (plain["world"], plain["model"], plain["method"]["name"]) == ("countdown", "tiny", "grpo"), (
        "tiny is no directory here"
    )
    assert Recipe.from_json({"world": "countdown", "model": "owner/name"}).to_json()["model"] == "owner/name"
