"""A planner with access to all recipes: it gets all raw items the goal needs, then crafts bottom up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.worlds.textcraft.recipes import Book, Ingredient, Recipe, display_name, parse_observation
from tacit.worlds.textcraft.world import open_task


class CraftStep(NamedTuple):
    """One use of a recipe, with an item for each ingredient."""

    recipe: Recipe
    items: tuple[str, ...]

    @property
    def command(self) -> str:
        listed = ", ".join(
            f"{part.count} {display_name(item)}" for part, item in zip(self.recipe.ingredients, self.items, strict=True)
        )
        return f"craft {self.recipe.count} {display_name(self.recipe.makes)} using {listed}"


@dataclass
class Plan:
    gets: dict[str, int] = field(default_factory=dict)
    crafts: list[CraftStep] = field(default_factory=list)
    """in a feasible order"""

    def __len__(self) -> int:
        return len(self.gets) + len(self.crafts)

    @property
    def commands(self) -> list[str]:
        return [
            *(f"get {n} {display_name(item)}" for item, n in self.gets.items()),
            *(making.command for making in self.crafts),
        ]


def plan(book: Book, goal: str, held: Mapping[str, int]) -> Plan:
    """What is left to get and craft, by backward search:

        need(item, n) = nothing if n are held, else `get` the missing ones, or apply a recipe as often as needed after
                        need(ingredient, count · times) for each ingredient

    Of several recipes, the one that adds the fewest commands is used. Surplus is used before more is crafted. Each raw item is
    fetched once, in the total number. A generic ingredient is one item: a held one if there are enough, else the cheapest.
    The goal itself is crafted once even if one is held, because crafting it ends the episode.
    """
    made = Plan()
    stock = {item: count for item, count in held.items() if item != goal}
    _craft(book, goal, 1, stock, made)
    return made


def _need(book: Book, item: str, count: int, stock: dict[str, int], made: Plan) -> None:
    missing = count - stock.get(item, 0)
    if missing <= 0:
        return
    if not book.recipes.get(item):
        made.gets[item] = made.gets.get(item, 0) + missing
        stock[item] = count
        return
    _craft(book, item, missing, stock, made)


def _craft(book: Book, item: str, missing: int, stock: dict[str, int], made: Plan) -> None:
    """Use the recipe that adds the fewest commands to the plan."""
    ways = [
        r for r in book.recipes[item] if all(min(map(book.price, book.matching_items(part))) < inf for part in r.ingredients)
    ]
    if len(ways) == 1:
        _follow(book, ways[0], missing, stock, made)
        return
    tried = [(way, dict(stock), Plan(dict(made.gets), list(made.crafts))) for way in ways]
    for way, left, longer in tried:
        _follow(book, way, missing, left, longer)
    _, left, longer = min(tried, key=lambda one: len(one[2]))
    stock.update(left)
    made.gets, made.crafts = longer.gets, longer.crafts


def _follow(book: Book, recipe: Recipe, missing: int, stock: dict[str, int], made: Plan) -> None:
    times = -(-missing // recipe.count)
    items = []
    for part in recipe.ingredients:
        count = part.count * times
        chosen = _choose(book, part, count, stock)
        _need(book, chosen, count, stock, made)
        stock[chosen] -= count
        items.append(chosen)
    made.crafts += [CraftStep(recipe, tuple(items))] * times
    stock[recipe.makes] = stock.get(recipe.makes, 0) + recipe.count * times


def _choose(book: Book, part: Ingredient, count: int, stock: Mapping[str, int]) -> str:
    if not part.generic:
        return part.name
    held = [item for item in book.members[part.name] if stock.get(item, 0) >= count]
    return held[0] if held else min(book.members[part.name], key=lambda item: (book.price(item), item))


class Crafter(ByReading):
    """Plans from the current inventory, so it can advise in any episode."""

    def __init__(self, task: Task) -> None:
        self._book, self._goal, _ = open_task(task)

    def act(self, observation: Observation) -> str:
        return plan(self._book, self._goal, parse_observation(observation.text).held).commands[0]
