"""A world with a missing dependency is listed with its install command and refused when played."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tacit.worlds.countdown as countdown
from tacit.cli.main import main
from tacit.config.checks import find_world, open_world
from tacit.core.errors import TacitError
from tacit.core.types import Observation
from tacit.core.world import World

HERE = countdown.ENVIRONMENT
ELSEWHERE = replace(HERE, requires=("json", "no_such_engine"), extra="engine", summary="a game of another engine")


@pytest.fixture
def not_ready(monkeypatch):
    monkeypatch.setattr(countdown, "ENVIRONMENT", ELSEWHERE)


def test_missing_package_is_named_with_its_install_command():
    assert HERE.missing == () and HERE.remedy == ""
    HERE.check_ready()
    assert ELSEWHERE.missing == ("no_such_engine",)
    assert ELSEWHERE.remedy == "needs no_such_engine: `pip install 'tacit-agents[engine]'`"
    assert replace(ELSEWHERE, extra="").remedy == "needs no_such_engine: `pip install no_such_engine`"
    with pytest.raises(TacitError, match=r"world 'countdown' is not ready here: it needs no_such_engine: `pip install 'tacit-"):
        ELSEWHERE.check_ready()


def test_missing_system_dependency_is_named():
    lacking = replace(HERE, lacks=lambda: "a browser: `apt install one`")
    assert lacking.missing == () and lacking.remedy == "needs a browser: `apt install one`"
    assert replace(lacking, requires=("no_such_engine",)).remedy == (
        "needs no_such_engine: `pip install no_such_engine`, and a browser: `apt install one`"
    )
    with pytest.raises(TacitError, match="not ready here: it needs a browser"):
        lacking.check_ready()


def test_unready_world_is_found_but_cannot_be_opened(not_ready):
    assert find_world("countdown") is ELSEWHERE
    with pytest.raises(TacitError, match="not ready here"):
        open_world("countdown")


def test_list_shows_install_command_of_unready_world(not_ready, capsys):
    assert main(["list", "worlds"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "a game of" in out and "countdown needs no_such_engine: `pip install 'tacit-agents[engine]'`" in out and "yes" in out
    assert main(["list", "panels", "--world", "countdown"]) == 0
    assert "countdown/test/128" in capsys.readouterr().out, "its tasks need no engine"


@pytest.mark.parametrize("command", [["play", "--policy", "expert"], ["eval", "expert"], ["train", "--model", "tiny"]])
def test_commands_refuse_unready_world_with_install_command(not_ready, capsys, command):
    assert main([*command, "--world", "countdown"]) == 2
    assert "pip install 'tacit-agents[engine]'" in " ".join(capsys.readouterr().err.split())


def raise_key_error(split, count, seed):
    raise KeyError("secret")


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (lambda *_: None, r"tasks\('test', 2, 0\) of world 'countdown' returned None, not a list of Task"),
        (
            raise_key_error,
            r"tasks\('test', 2, 0\) of world 'countdown' failed: KeyError: 'secret' \(test_ready\.py, line \d+\)",
        ),
        (lambda *_: (1 / 0 for _ in "a"), "failed: ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("families", [(), ("three_numbers",)])
def test_broken_tasks_function_gives_a_one_line_error(tasks, message, families):
    with pytest.raises(TacitError, match=message if tasks is raise_key_error or not families else "of world 'countdown'"):
        replace(HERE, tasks=tasks).tasks_of("test", 2, 0, families)


def test_example_texts_must_be_a_function_returning_strings():
    with pytest.raises(
        TacitError, match=r"example_texts of world 'countdown' is a list, not a function; .*example_texts=lambda"
    ):
        replace(HERE, example_texts=["a"])
    for wrong, message in (
        (lambda seed: None, "not iterable"),
        (lambda seed: [3], "but has 3"),
        (dict.fromkeys, "not iterable"),
    ):
        with pytest.raises(
            TacitError, match=rf"example_texts\(0\) of world 'countdown' must give a list of strings.*{message}"
        ):
            replace(HERE, example_texts=wrong).texts(0)


def test_single_example_text_is_not_split_into_characters():
    assert replace(HERE, example_texts=lambda seed: "3 7 25 > 82").texts(0) == ["3 7 25 > 82"]


def test_world_instance_instead_of_class_is_refused():
    """An instance (`make=lambda *_: WORLD`) would be shared by all episodes."""
    with pytest.raises(TacitError, match=r"make of world 'countdown' is a \w+, not a function; give the class, \w+\.$"):
        replace(HERE, make=HERE.make())


def test_missing_expert_or_split_error_suggests_a_fix(capsys):
    with pytest.raises(TacitError, match=r"has no expert: give its Environment `experts`, or set sft.steps = 0"):
        replace(HERE, experts={}).expert()
    with pytest.raises(TacitError, match=r"choose one of train \(tacit eval --split, evaluation.split in training\)"):
        replace(HERE, splits=("train",)).split_to_measure()


def test_world_class_without_reset_or_step_is_refused():
    class Still(World):
        def reset(self, task):
            return Observation("")

    with pytest.raises(TacitError, match=r"Still of world 'countdown' has no step\(self, action\); define it"):
        replace(HERE, make=Still)
    with pytest.raises(TacitError, match=r"object of world 'countdown' has no reset\(self, task\)"):
        replace(HERE, make=object)
