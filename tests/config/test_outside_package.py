"""A separate package adds a world, a method and an engine by entry points. They are listed and train together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MODULE = '''
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from guessing import NEXT
from tacit.core.method import Part, replaces
from tacit.core.protocols import Engine
from tacit.credit.episode import LeaveOneOut
from tacit.engines import LOCAL
from tacit.methods.grpo import GRPO

WORLD = replace(NEXT, name="letters")


@dataclass(frozen=True)
class Bold(GRPO):
    """GRPO that leaves itself out."""

    name: ClassVar[str] = "bold"
    kl: float = 0.0

    def changes(self, world, resources) -> Sequence[Part]:
        return (replaces("credits", "episode credit", LeaveOneOut()),)


def load(model, settings):
    print("the courier loads", model.name)
    return LOCAL.load(model, settings)


ENGINE = Engine("courier", "the local engine, carried", LOCAL.capabilities, LOCAL.settings, load, LOCAL.fit)
'''
ENTRY_POINTS = """
[tacit.worlds]
letters = letters_package:WORLD
[tacit.methods]
bold = letters_package:Bold
[tacit.engines]
courier = letters_package:ENGINE
broken = letters_package:NOTHING
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """An installed package as pip leaves it: modules and a dist-info directory."""
    place = tmp_path_factory.mktemp("site")
    (place / "letters_package.py").write_text(MODULE)
    info = place / "letters_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: letters-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return place


def tacit(installed: Path, *words: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(installed), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "tacit", *words], env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_entry_points_are_listed(installed):
    for what, name in (("worlds", "letters"), ("methods", "bold"), ("engines", "courier")):
        result = tacit(installed, "list", what)
        assert result.returncode == 0 and name in result.stdout, result.stdout + result.stderr


@pytest.mark.slow
def test_entry_points_train_together(installed, tmp_path):
    words = ["--world", "letters", "--method", "bold+gigpo", "--engine", "courier", "--model", "tiny-0.5m", "--iterations", "1",
             "--groups", "2", "--group-size", "2", "--sft.steps", "2", "--tasks", "8", "--evaluation.tasks", "2",
             "--engine.device", "cpu", "--out", str(tmp_path / "run")]  # fmt: skip
    done = tacit(installed, "train", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the courier loads tiny-0.5m" in done.stdout and (tmp_path / "run" / "summary.json").exists()


def test_broken_entry_point_is_reported(installed):
    done = tacit(installed, "train", "--world", "letters", "--engine", "broken")
    assert done.returncode == 2 and "cannot load the engine 'broken' of letters-package" in done.stderr
