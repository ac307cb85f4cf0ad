"""A planner that knows the book: it gets everything raw that the goal takes, then crafts from the bottom up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.worlds.textcraft.recipes import Book, Ingredient, Recipe, read, spoken
from tacit.worlds.textcraft.world import set_up

# Backward search: what is still to be got and crafted for a goal, given what is held.
#
#     need(item, n):   nothing where n are held, else `get` what is missing, or a recipe as often as it takes, and before it
#                      need(ingredient, count · times) for each ingredient
#
# Of several recipes each is tried to the bottom, and the one that adds the fewest commands taken. What is crafted too much of
# is
# used before more is crafted, and what is got is got at once in the number that the whole plan takes. A generic ingredient is
# met by one item: one that is held in sufficient number, else the one whose price, in commands from nothing, is lowest.


class Making(NamedTuple):
    """One recipe, with an item for each of its ingredients."""

    recipe: Recipe
    items: tuple[str, ...]

    @property
    def command(self) -> str:
        listed = ", ".join(f"{part.count} {spoken(item)}" for part, item in zip(self.recipe.of, self.items, strict=True))
        return f"craft {self.recipe.count} {spoken(self.recipe.makes)} using {listed}"


@dataclass
class Plan:
    gets: dict[str, int] = field(default_factory=dict)
    crafts: list[Making] = field(default_factory=list)
    """in an order in which they can be done"""

    def __len__(self) -> int:
        return len(self.gets) + len(self.crafts)

    @property
    def commands(self) -> list[str]:
        return [*(f"get {n} {spoken(item)}" for item, n in self.gets.items()), *(making.command for making in self.crafts)]


def plan(book: Book, goal: str, held: Mapping[str, int]) -> Plan:
    """What is left to do. The goal itself is crafted once, also where one is held: an episode ends when it is crafted."""
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
    """By the recipe that adds the fewest commands to the plan, each tried to the bottom."""
    ways = [r for r in book.recipes[item] if all(min(map(book.price, book.fitting(part))) < inf for part in r.of)]
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
    for part in recipe.of:
        count = part.count * times
        chosen = _choose(book, part, count, stock)
        _need(book, chosen, count, stock, made)
        stock[chosen] -= count
        items.append(chosen)
    made.crafts += [Making(recipe, tuple(items))] * times
    stock[recipe.makes] = stock.get(recipe.makes, 0) + recipe.count * times


def _choose(book: Book, part: Ingredient, count: int, stock: Mapping[str, int]) -> str:
    if not part.generic:
        return part.name
    held = [item for item in book.members[part.name] if stock.get(item, 0) >= count]
    return held[0] if held else min(book.members[part.name], key=lambda item: (book.price(item), item))


class Crafter(ByReading):
    """Plans anew from what is held, so it can be asked in the middle of anyone's episode."""

    def __init__(self, task: Task) -> None:
        self._book, self._goal, _ = set_up(task)

    def act(self, observation: Observation) -> str:
        return plan(self._book, self._goal, read(observation.text).held).commands[0]
