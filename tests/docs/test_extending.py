"""The examples of docs/extending.md are run, word for word."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tacit.cli.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


@pytest.fixture
def written(tmp_path: Path, monkeypatch) -> Path:
    """The page's two code blocks as the files it says they are."""
    world, method = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "guess.py").write_text(world)
    (tmp_path / "finish.py").write_text(method)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("guess", "finish"):
        sys.modules.pop(name, None)


def test_the_world_plays(written: Path, capsys) -> None:
    assert main(["play", "--world", "guess.py:GUESS", "--policy", "expert"]) == 0
    assert "success" in capsys.readouterr().out


def test_the_world_and_the_method_train(written: Path, capsys) -> None:
    flags = [
        "--world",
        "guess.py:GUESS",
        "--method",
        "finish:Finish",
        "--history",
        "-1",
        "--out",
        "run",
        "--engine.threads",
        "1",
    ]
    small = ["--sft.steps", "2", "--iterations", "1", "--groups", "2", "--group-size", "2", "--evaluation.tasks", "2"]
    assert main(["train", *flags, *small, "--model", "tiny-0.5m", "--tasks", "20"]) == 0
    assert "after rl 1" in capsys.readouterr().out
