"""docs/experiments/reproduction.md: its commands parse, its recipes exist, and a row has results only if it is done."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tacit.cli import compare
from tacit.cli.eval import make_parser as eval_parser
from tacit.cli.train import add_training_options, peek_arguments
from tacit.config.flags import Parser
from tacit.config.recipe import FOLDER, find_recipe, packaged, run_recipe

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "experiments" / "reproduction.md").read_text(encoding="utf-8")
COMMANDS = {letter: text.split("   ")[0] for letter, text in re.findall(r"^    ([A-Z]\d?) {2,3}(\S.*)$", PAGE, re.MULTILINE)}
ROWS = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in PAGE.splitlines() if line.startswith("|")]


def test_every_published_recipe_is_on_the_page():
    names = [recipe.name for recipe in packaged() if recipe.name.startswith("published/")]
    assert names and [name for name in names if name.rpartition("/")[2] not in " ".join(COMMANDS.values())] == []


@pytest.mark.parametrize("letter", COMMANDS)
def test_command_parses(letter, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(COMMANDS[letter])
    program, verb, *rest = words
    if verb == "compare":
        arguments, _ = compare.make_parser().parse(rest)
        assert arguments.file.is_relative_to(FOLDER)
    elif verb == "eval":
        assert eval_parser("grpo").parse(rest)[0].target
    elif verb == "train":
        parser = Parser("train", "")
        parser.add_argument("--config", type=run_recipe)
        add_training_options(parser, *peek_arguments(rest, resumable=False))
        assert parser.parse(rest)[0].config
    elif verb == "modules":
        assert run_recipe(rest[rest.index("--config") + 1])
    else:
        located = shlex.split(verb.removeprefix("$(").removesuffix(")"))
        assert program == "bash" and located[:3] == ["tacit", "list", "recipes"] and find_recipe(located[3], "script")


def test_letters_in_tables_are_commands():
    letters = re.compile(r"[A-Z]\d?(, [A-Z]\d?)*( \(.*\))?")
    cells = [cell.partition(" (")[0].split(", ") for row in ROWS for cell in row if letters.fullmatch(cell)]
    used = {letter for each in cells for letter in each}
    assert len(used) >= 8 and used <= set(COMMANDS)


def test_row_has_results_only_if_done():
    states = {"done", "running", "not run", "in part"}
    for row in (row for row in ROWS if row[-1] in states and len(row) > 2):
        ours = [cell for cell in row[1:-2] if "[" in cell]
        assert bool(ours) == (row[-1] in ("done", "in part")), row
