"""docs/experiments/credit_quality.md: its commands parse, its files exist, its estimators are the measured ones."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tacit.cli.inspect import make_credit_parser
from tacit.cli.main import main
from tacit.config.recipe import Recipe, run_recipe
from tacit.credit.partitions import SameKey
from tacit.evaluation.credit_agreement import make_estimators

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "experiments" / "credit_quality.md").read_text(encoding="utf-8")
COMMANDS = [line.partition("  #")[0].strip() for line in re.findall(r"^ {4}((?:tacit|python) .*)$", PAGE, re.MULTILINE)]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(command)
    if program == "python":
        source = (ROOT / words[0]).read_text(encoding="utf-8")
        assert all(f'"{flag}"' in source for flag in re.findall(r"--[a-z]+", command))
    elif words[0] == "inspect":
        assert make_credit_parser("grpo").parse(words[2:])[0].target == "RUN"
    elif words[0] == "compare":
        assert main([*words, "--dry-run"]) == 0
    else:
        recipe = Recipe.resolve(run_recipe(words[words.index("--config") + 1]), {})
        assert recipe.train.keep > recipe.schedule.iterations


def test_measured_estimators_are_on_the_page():
    parts = {"exact observation": SameKey(), "exact state": SameKey("state"), "clusters": SameKey()}
    table = PAGE.split("## The estimators")[1].split("##")[0]
    for name in {name.partition(",")[0] for name in make_estimators(parts)}:
        assert name in table, name


def test_named_code_files_exist():
    for place in re.findall(r"`((?:tests|evaluation|benchmarks)/[\w/.]+\.py)`", PAGE):
        assert (ROOT / place).is_file() or (ROOT / "tacit" / place).is_file(), place
