"""Real TextWorld games: error messages without the package, and a generated game played with it."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from skilled import episode, step

from tacit.companions.dictionary import extract_dictionary
from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.worlds.cooking.textworld_adapter import TextWorldWorld, game_tasks, textworld_environment
from tacit.worlds.cooking.tracker import Direction, Recipe, read_recipe


def task_of(path):
    return Task("textworld", "textworld/x", "games", "games", 0, "", {"path": str(path)})


def test_missing_games_are_reported(tmp_path):
    with pytest.raises(TacitError, match=r"no TextWorld game .*nowhere\.z8"):
        TextWorldWorld().reset(task_of(tmp_path / "nowhere.z8"))
    with pytest.raises(TacitError, match="no TextWorld game"):
        TextWorldWorld().reset(Task("textworld", "x", "games", "games", 0, ""))
    with pytest.raises(TacitError, match="no TextWorld games"):
        textworld_environment(tmp_path)
    with pytest.raises(TacitError, match=r"call reset\(task\) first"):
        TextWorldWorld().step("look")


def test_missing_package_error_says_how_to_install(tmp_path, monkeypatch):
    (tmp_path / "game.z8").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(TacitError, match=r"pip install 'tacit-agents\[textworld\]'"):
        TextWorldWorld().reset(task_of(tmp_path / "game.z8"))


def test_game_tasks_lists_games_in_a_folder(tmp_path):
    for name in ("b.z8", "a.z8", "notes.txt", "c.ulx"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "a.json").write_text('{"objective": "Cook  it."}')
    (tmp_path / "b.json").write_text("{")
    games = game_tasks(tmp_path)
    assert [t.id for t in games] == ["textworld/a", "textworld/b", "textworld/c"]
    assert [t.goal for t in games] == ["Cook it.", "Play the game to a good end.", "Play the game to a good end."]
    environment = textworld_environment(tmp_path)
    assert environment.tasks("games", 2, 5) == environment.tasks("games", 3, 5)[:2]
    with pytest.raises(TacitError, match=r"asked for 4 games, but .* holds 3"):
        environment.tasks("games", 4, 0)
    with pytest.raises(TacitError, match="unknown split"):
        environment.tasks("train", 1, 0)


OTHER_WORDS = {
    "examine cookbook": ("x cookbook", "read the cookbook", "look at cookbook", "check cookbook", "l cookbook"),
    "look": ("l", "look in fridge", "dance", ""),
    "inventory": ("i", "inv", "take inventory"),
    "go north": ("n", "North", "walk north"),
    "go south": ("s", "run south"),
    "go east": ("e", "east"),
    "open": ("open the", "shut", "close"),
    "take": ("get", "pick up", "carry", "take the"),
    "drop": ("put down", "discard", "throw"),
    "chop": ("chop the", "dice"),
    "eat meal": ("eat the meal", "Eat  meal."),
}
"""synonyms in Inform's standard grammar, plus an unknown `dance`; for verbs with an object, the text before the object"""


def in_other_words(action: str, rng: random.Random) -> str:
    known = action if action in OTHER_WORDS else action.split()[0]
    if known not in OTHER_WORDS:
        return action
    return " ".join((rng.choice(OTHER_WORDS[known]), *action.split()[1:] * (known != action))).strip()


def win(rng: random.Random) -> list[str]:
    middle = ["go north", "go south", "go east", "open fridge", "open door", "take a", "take b", "look", "inventory", "drop a"]
    acts = ["examine cookbook", *rng.choices(middle, k=rng.randint(6, 16))]
    acts += rng.sample(["chop a with knife", "cook a with oven", "take c"], rng.randint(0, 3))
    return [*acts, "prepare meal", "eat meal"]


@pytest.mark.slow
def test_synonym_commands_have_equal_segment_counts(tmp_path):
    """TextWorld accepts `get` for `take` and `n` for `go north`. Such words must not cost fewer segments."""
    (tmp_path / "a.z8").write_bytes(b"")
    alphabet = textworld_environment(tmp_path).alphabet

    def spelled(actions: list[str]) -> tuple[str, ...]:
        return alphabet(replace(episode(""), steps=tuple(map(step, actions))))

    rng = random.Random(1)
    wins = [win(rng) for _ in range(256)]
    others = [[in_other_words(action, rng) for action in one] for one in wins]
    assert sum(a != b for one, other in zip(wins, others, strict=True) for a, b in zip(one, other, strict=True)) > 2000
    for share in (0, 64, 256):
        learned = extract_dictionary([spelled(one) for one in (*others[:share], *wins[share:])], alphabet.skills, 4).dictionary
        assert learned.merged
        segments = [[learned.seg(spelled(one)) for one in of] for of in (wins, others)]
        assert segments[0] == segments[1], share
    several = spelled(["take a then n. x cookbook", "g", "again. drop a", "."])
    assert several == ("TAKE", "EXPLORE", *["READ_RECIPE"] * 3, "DELIVER", "INSPECT"), "one line may hold several commands"


installed = pytest.mark.skipif(importlib.util.find_spec("textworld") is None, reason="textworld is not installed")


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    maker = Path(sys.executable).parent / "tw-make"
    folder = tmp_path_factory.mktemp("games")
    options = ["--recipe", "1", "--take", "1", "--cook", "--cut", "--open", "--seed", "3", "--recipe-seed", "3"]
    subprocess.run([maker, "tw-cooking", *options, "--output", folder / "cooking.z8", "--silent"], check=True)
    return textworld_environment(folder)


@installed
def test_walkthrough_wins_a_real_game(games):
    (task,) = games.tasks("games", 1, 0)
    walkthrough = json.loads(Path(task.data["path"]).with_suffix(".json").read_text())["metadata"]["walkthrough"]
    world = games.make()
    first = world.reset(task)
    assert first.text.startswith("-= Kitchen =-") and "open fridge" in first.actions
    transitions = [world.step(action) for action in walkthrough]
    assert transitions[-1].done and transitions[-1].success and transitions[-1].score == 1.0
    assert not any(t.done for t in transitions[:-1])
    cookbook = transitions[walkthrough.index("examine cookbook")].observation.text
    assert read_recipe(cookbook) == Recipe(("lettuce",), (Direction("chop", "lettuce"), Direction("fry", "lettuce")))
    assert world.reset(task) == first, "the same world plays it again"
    world.close()


@installed
def test_real_game_refuses_unknown_verbs_and_can_be_lost(games):
    (task,) = games.tasks("games", 1, 0)
    world = games.make()
    world.reset(task)
    refused = world.step("dance wildly")
    assert not refused.effective and refused.observation.text.startswith("That's not a verb I recognise.")
    opened = world.step("open fridge")
    assert opened.effective and opened.observation.text.startswith("You open the fridge, revealing a lettuce")
    world.step("take lettuce from fridge")
    world.step("cook lettuce with stove")
    burned = world.step("cook lettuce with stove")
    assert burned.done and not burned.success and burned.label == "burned"
    world.reset(task)
    for action in ("open fridge", "take lettuce from fridge"):
        world.step(action)
    wrong = world.step("cook lettuce with oven")
    assert wrong.done and wrong.label == "wrong_processing" and ">" not in wrong.observation.text
    world.close()


@installed
def test_foreign_and_truncated_game_files_are_rejected(games, tmp_path):
    (task,) = games.tasks("games", 1, 0)
    image = Path(task.data["path"]).read_bytes()
    for content in (b"", b"not a game", image[: len(image) // 2]):
        (tmp_path / "broken.z8").write_bytes(content)
        with pytest.raises(TacitError, match=r"cannot play .*broken\.z8"):
            TextWorldWorld().reset(task_of(tmp_path / "broken.z8"))
