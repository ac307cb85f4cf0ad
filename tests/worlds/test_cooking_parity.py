"""The cooking game lists the commands that TextWorld lists, on TextWorld's own games; needs the package."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tacit.core.types import Task
from tacit.worlds.cooking.world import COOKED, CUTS, FOODS, FURNITURE, RAW, UNCUT, CookingWorld

pytest.importorskip("textworld", reason="the package textworld is not installed")

from textworld.challenges.tw_cooking import cooking
from textworld.generator.game import GameOptions, GameProgression
from textworld.generator.inform7 import Inform7Game
from textworld.generator.maker import GameMaker

pytestmark = pytest.mark.slow

WAYS = {"north_of": "north", "south_of": "south", "east_of": "east", "west_of": "west"}
GAMES, STEPS = 6, 20


def data_of(game: Any) -> tuple[dict[str, Any], set[str]]:
    """A TextWorld game converted to our task data, and the names of everything open at the start."""

    def named(variable: Any) -> str:
        info = game.infos.get(variable.name)
        return (info.name if info else None) or variable.name

    facts = [(f.name, [named(a) for a in f.arguments], [a.type for a in f.arguments]) for f in game.world.facts]
    house: dict[str, Any] = {
        name: {"exits": {}, "furniture": []}
        for _, names, kinds in facts
        for name, kind in zip(names, kinds, strict=True)
        if kind == "r"
    }
    doors = {(names[0], names[2]): names[1] for fact, names, _ in facts if fact == "link"}
    bases = {names[1]: names[0] for fact, names, _ in facts if fact == "base"}
    start, opened, places, states, order = "", set[str](), dict[str, str](), dict[str, set[str]](), dict[str, str]()
    for fact, names, kinds in facts:
        if fact in WAYS and len(names) == 2:
            house[names[1]]["exits"][WAYS[fact]] = [names[0], doors.get((names[1], names[0]), "")]
        elif fact == "at" and kinds[0] == "P":
            start = names[1]
        elif fact == "at" and any(names[0] in there for there in FURNITURE.values()):
            house[names[1]]["furniture"].append(names[0])
        elif fact in ("at", "on", "in") and kinds[0] in ("o", "f"):
            places[names[0]] = "carried" if kinds[1] == "I" else f"floor {names[1]}" if fact == "at" else names[1]
        elif fact == "open":
            opened.add(names[0])
        elif fact.startswith("ingredient_"):
            order[fact] = names[0]
        elif fact in (*COOKED, *CUTS.values()):
            states.setdefault(f"wanted {bases[names[0]]}" if names[0] in bases else names[0], set()).add(fact)

    def state(name: str) -> list[str]:
        known = states.get(name, set())
        return [next((s for s in COOKED if s in known), RAW), next((s for s in CUTS.values() if s in known), UNCUT)]

    return {
        "house": house,
        "start": start,
        "items": [[name, place, *(state(name) if name in FOODS else ["", ""])] for name, place in places.items()],
        "recipe": [[order[fact], *state(f"wanted {order[fact]}")] for fact in sorted(order)],
        "cook": True,
        "cut": True,
        "flavour": 0,
    }, opened


@pytest.mark.parametrize("seed", range(GAMES))
def test_listed_commands_equal_textworld(seed, monkeypatch):
    monkeypatch.setattr(GameMaker, "set_walkthrough", lambda self, commands: None)  # avoids compiling the game
    rng, size = Random(seed), 1 + seed % 3
    settings = {"recipe": size, "take": size, "go": rng.choice((1, 6)), "cook": True, "cut": True, "drop": False}
    settings |= {"open": bool(seed % 2), "recipe_seed": seed, "split": None}
    options = GameOptions()
    options.seeds = seed
    game = cooking.make(settings, options)
    theirs, names, world = GameProgression(game), Inform7Game(game), CookingWorld()
    data, opened = data_of(game)
    world.reset(Task("cooking", "parity", "hard", "own", 0, "", data))
    world.game.opened |= opened
    for _ in range(STEPS):
        commands = names.gen_commands_from_actions(theirs.valid_actions)
        assert list(world.game.admissible()) == sorted(set(commands))
        choices = [
            pair for pair in zip(theirs.valid_actions, commands, strict=True) if pair[1].split()[0] not in ("look", "examine")
        ]
        action, command = rng.choice([pair for pair in choices if pair[1] != "prepare meal"])
        theirs.update(action)
        if world.step(command).done:
            break
