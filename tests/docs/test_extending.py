"""The code blocks of docs/tutorials/own_world.md and docs/guides/extend.md run as they are."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tacit.cli.main import main
from tacit.cli.train import make_parser, peek_arguments
from tacit.config.checks import prepare
from tacit.config.recipe import Recipe
from tacit.core.actions import TAGS, Parsed
from tacit.engines import get_engine
from tacit.methods import METHODS, get_method
from tacit.worlds import get_environment

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = "".join((DOCS / page).read_text() for page in ("tutorials/own_world.md", "guides/extend.md"))
FILES = ("guess", "more", "look_up", "finish", "hurry", "my_engine")
SMALL = """
model = "tiny-0.5m"
out = "run"
tasks = 20
max_steps = 3
tiny = {hidden = 32, layers = 2, heads = 2, kv_heads = 2}
engine = {threads = 1}
sft = {steps = 2, tasks = 8}
schedule = {iterations = 1, groups = 2, group_size = 4}
evaluation = {tasks = 2}
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch, trusted_code) -> Path:
    """The code blocks of both pages, written to the files they name."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    blocks = re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL)
    for name, text in zip(FILES, blocks, strict=True):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "small.toml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name, None)


def train(*flags: str) -> int:
    return main(["train", "--config", "small.toml", *flags])


def test_commands_of_the_pages_do_not_warn(written: Path) -> None:
    commands = re.findall(r"^    tacit train (.*?)(?: +#.*)?$", PAGES, re.MULTILINE)
    own = [command.split() for command in commands if "my_package" not in command and "MODEL" not in command]
    assert len(own) == 5
    for words in own:
        _, overrides = make_parser(*peek_arguments(words)).parse(words)
        assert not [note for note in prepare(Recipe.resolve(None, overrides)).recipe.notes if "hardly" in note], words


def test_example_worlds_can_be_played(written: Path, capsys) -> None:
    assert main(["play", "--world", "guess.py:GUESS", "--policy", "expert"]) == 0
    assert "success" in capsys.readouterr().out
    assert main(["eval", "expert", "--world", "more.py:MORE", "--tasks", "4"]) == 0
    assert "success 100.0%" in capsys.readouterr().out


def test_full_wording_requests_the_tags_that_are_parsed(written: Path) -> None:
    rules = get_environment("guess.py:GUESS").wording("full")
    assert TAGS.parse(rules.request("tags").replace("> <", ">10<")) == Parsed("10", True)
    assert "<" not in rules.request("bare")


def test_world_with_its_own_tags_plays_and_trains(written: Path, capsys) -> None:
    assert main(["eval", "expert", "--world", "look_up.py:LOOK_UP", "--tasks", "3"]) == 0
    assert "success 100.0%" in capsys.readouterr().out
    assert train("--world", "look_up.py:LOOK_UP", "--style", "tags", "--max-tokens", "32") == 0
    assert "after rl 1" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["finish.py:Finish", "hurry.py:Hurry"])
def test_example_methods_train(written: Path, capsys, method: str) -> None:
    assert train("--world", "guess.py:GUESS", "--method", method, "--history", "-1") == 0
    assert "after rl 1" in capsys.readouterr().out


def test_example_methods_change_credits_and_rewards(written: Path) -> None:
    world = get_environment("guess.py:GUESS")
    finish, hurry = (get_method(name)().build(world) for name in ("finish.py:Finish", "hurry.py:Hurry"))
    assert [type(term).__name__ for term in finish.credits] == ["LastStep"]
    assert [type(term).__name__ for term in hurry.rewards] == ["Outcome", "InvalidPenalty", "StepCost"]
    both = get_method("finish.py:Finish+hurry.py:Hurry")(cost=0.3).build(world)
    assert (both.credits, both.rewards[-1].cost) == (finish.credits, 0.3)


def test_example_engine_is_checked_for_capabilities(written: Path, capsys) -> None:
    assert get_engine("my_engine.py:ENGINE").capabilities == {"sampling", "learning"}
    assert main(["train", "--world", "guess.py:GUESS", "--engine", "my_engine.py:ENGINE", "--engine.device", "cuda"]) == 2
    assert "needs reference, scoring, which engine 'mine' cannot do. Engines that can: local" in capsys.readouterr().err


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_in_the_example_world(written: Path, capsys, method: str) -> None:
    assert train("--world", "more.py:MORE", "--method", method) == 0
    assert "after rl 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "missing"), [("reuserl", "alphabet"), ("round_length", "alphabet"), ("constant_context", "tracker")]
)
def test_missing_part_of_the_example_world_is_named(written: Path, capsys, method: str, missing: str) -> None:
    assert train("--world", "guess.py:GUESS", "--method", method) == 2
    assert f"Give its Environment `{missing}=" in capsys.readouterr().err


def test_example_method_has_its_own_flag(written: Path, capsys) -> None:
    assert main(["train", "--method", "hurry.py:Hurry", "--help"]) == 0
    assert "--cost NUMBER taken off for every step (default: 0.1)" in " ".join(capsys.readouterr().out.split())
