"""docs/guides/evaluation.md: its commands parse, all metrics are described, its example panel can be played."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from tacit.cli.eval import make_parser
from tacit.evaluation.behavior import Behavior
from tacit.evaluation.panels import read_panel
from tacit.evaluation.scores import PanelScore
from tacit.rollout.worlds import InProcessPool
from tacit.worlds import get_environment

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "evaluation.md").read_text()
COMMANDS = re.findall(r"^    tacit eval ([^#\n]+)", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command):
    arguments, _ = make_parser("grpo").parse(shlex.split(command))
    assert arguments.target or arguments.endpoint


def test_page_has_commands():
    assert len(COMMANDS) >= 6


def test_every_metric_is_on_the_page():
    documented = set(re.findall(r"`(?:behaviour\.)?(\w+)`", PAGE))
    names = {field.name for field in (*fields(PanelScore), *fields(Behavior))}
    assert not names - documented


def test_example_panel_can_be_played(tmp_path):
    lines = re.findall(r"^    (\{\".*\})$", PAGE, re.MULTILINE)
    file = tmp_path / "shown.jsonl"
    file.write_text("\n".join(lines) + "\n")
    panel = read_panel(file)
    world = get_environment("countdown")
    (first,) = InProcessPool(world.make).reset(panel.tasks)
    assert "24" in first.text and panel.name == "my-puzzles"
