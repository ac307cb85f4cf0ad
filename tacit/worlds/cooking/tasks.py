"""Cooking tasks: ReuseRL's 4:1 mixture of simple games (one room, one ingredient) and hard ones (six rooms, two), all winnable.

If the cook or cut gate is on, the ingredient starts raw (uncut) and the recipe requires it cooked (cut). If it is off, the
ingredient starts as required, but the cookbook may still mention the step: cooking a roasted apple again burns it. A block of
five games has the four gate settings and a hard game. A digest of the recipe decides its split: 70% train, 15% test, 15% hard
(hard games only).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from random import Random
from typing import Any

from tacit.core.errors import check_split_and_count
from tacit.core.tasks import parse_panels
from tacit.core.types import Task
from tacit.worlds.cooking.world import COOKED, CUTS, FOODS, RAW, UNCUT, build_house

NAME = "cooking"
SPLITS = ("train", "test", "hard")
FAMILIES = ("simple", "hard")
GOAL = "You are hungry. Find the cookbook in the kitchen, follow its recipe, prepare the meal and eat it."
SAYS_COOK = 0.65  # probability that the cookbook mentions cooking if the ingredient starts cooked

Ingredient = tuple[str, str, str]  # food, cooking, cutting


def tasks(split: str, count: int, seed: int) -> list[Task]:
    """`count` different games of the split; a larger count begins with the same games."""
    check_split_and_count(NAME, SPLITS, split, count)
    rng = Random(f"{NAME}/{split}/{seed}")
    tasks_by_goal: dict[str, Task] = {}
    while len(tasks_by_goal) < count:
        block = [("hard", True, True)] * 5
        if split != "hard":
            block[1:] = [("simple", cook, cut) for cook in (False, True) for cut in (False, True)]
            rng.shuffle(block)
        for family, cook, cut in block:
            before = len(tasks_by_goal)
            while len(tasks_by_goal) == before:
                data = draw_game(rng, family, cook, cut, split)
                digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]
                name = f"{NAME}/{split}/{family}-{digest}"
                tasks_by_goal.setdefault(name, Task(NAME, name, family, split, seed, GOAL, data))
    return list(tasks_by_goal.values())[:count]


def split_of(recipe: Sequence[Sequence[str]]) -> str:
    share = zlib.crc32(json.dumps(sorted(map(list, recipe))).encode()) % 100
    return "train" if share < 70 else "test" if share < 85 else "hard"


def draw_game(rng: Random, family: str, cook: bool, cut: bool, split: str) -> dict[str, Any]:
    house = build_house(rng, 6 if family == "hard" else 1)
    furniture = [name for room in house.values() for name in room["furniture"]]
    recipe = _draw_recipe(rng, 2 if family == "hard" else 1, cook, cut, split, furniture)
    items: list[list[str]] = []  # name, where, cooking, cutting
    for name, cooking, cutting in recipe:
        where = rng.choice([place for place in FOODS[name].places if place in furniture])
        items.append([name, where, RAW if cook else cooking, UNCUT if cut else cutting])
        # Distractors: up to two foods that share a word with this one (red apple: red onion, green apple), in the same place.
        taken = {item[0] for item in items} | {ingredient[0] for ingredient in recipe}
        words = name.split()
        for end in (0, -1) if len(words) > 1 else ():
            if alike := [food for food in FOODS if food.split()[end] == words[end] and food not in taken]:
                items.append([rng.choice(alike), where, RAW, UNCUT])
                taken.add(items[-1][0])
    for _ in range(rng.randint(0, 5)):
        name = rng.choice(list(FOODS))
        places = [place for place in FOODS[name].places if place in furniture]
        if places and all(name != item[0] for item in items):
            items.append([name, rng.choice(places), RAW, UNCUT])
    items.append(["cookbook", rng.choice(("counter", "table")), "", ""])
    if cut or rng.random() < 0.5:
        items.append(["knife", rng.choice(("counter", "table")), "", ""])
    rng.shuffle(items)
    start, flavour = rng.choice(list(house)), rng.randrange(1 << 16)
    required = [list(ingredient) for ingredient in recipe]
    return {"house": house, "start": start, "items": items, "recipe": required, "cook": cook, "cut": cut, "flavour": flavour}


def _draw_recipe(rng: Random, size: int, cook: bool, cut: bool, split: str, furniture: Sequence[str]) -> tuple[Ingredient, ...]:
    """A recipe of the split: different foods that this house can have, in alphabetical order."""
    methods = [m for m in COOKED if m != "grilled" or "BBQ" in furniture]
    cuts = (*CUTS.values(), *(() if cut else (UNCUT,)))
    says_cook = cook or rng.random() < SAYS_COOK
    foods = [
        food
        for food in FOODS.values()
        if any(place in furniture for place in food.places)
        and (food.cookable if says_cook else not food.needs_cooking)
        and (food.cuttable or not cut)
    ]
    while True:
        chosen = sorted(rng.sample(foods, size), key=lambda food: food.name)
        recipe = tuple(
            (food.name, rng.choice(methods) if says_cook else RAW, rng.choice(cuts) if food.cuttable else UNCUT)
            for food in chosen
        )
        if split_of(recipe) == split:
            return recipe


PANELS = parse_panels("""
train  16:71112a93f14fe34e 128:2f8e620503771b10 256:a135883ec72d43ef 512:6878ea2625edc2c9 1000:c877083cfa7074c4
test   16:d24f95f8041bac45 128:fb2e835f4871eb6a 256:d1d24d3323b36d03 512:d06a8943b8516309 1000:450ba95f56a6ca77
hard   16:6753d3df6fab3815 128:8d192095aed6f32c 256:93b08bf73da918ff 512:9135eb0a4aa15669 1000:9951415060be21b4
""")
