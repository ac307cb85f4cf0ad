"""A planner with access to all recipes: it gets all raw items the goal needs, then crafts bottom up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.worlds.textcraft.recipes import Book, Recipe, display_name
from tacit.worlds.textcraft.world import open_task, parse_observation


@dataclass
class Plan:
    book: Book
    stock: dict[str, int]  # item -> what is there of it after the commands so far
    gets: dict[str, int] = field(default_factory=dict)
    crafts: list[tuple[Recipe, tuple[str, ...]]] = field(default_factory=list)
    """uses of recipes, with an item for each ingredient, in a feasible order"""

    def __len__(self) -> int:
        return len(self.gets) + len(self.crafts)

    @property
    def commands(self) -> list[str]:
        found = [f"get {n} {display_name(item)}" for item, n in self.gets.items()]
        for recipe, items in self.crafts:
            parts = zip(recipe.ingredients, items, strict=True)
            listed = ", ".join(f"{part.count} {display_name(item)}" for part, item in parts)
            found.append(f"craft {recipe.count} {display_name(recipe.makes)} using {listed}")
        return found

    def craft(self, item: str, missing: int) -> None:
        """Use the recipe that adds the fewest commands."""
        ways = [
            recipe
            for recipe in self.book.recipes[item]
            if all(min(map(self.book.price, self.book.matching_items(part))) < inf for part in recipe.ingredients)
        ]
        if len(ways) == 1:
            self._follow(ways[0], missing)
            return
        tried = [replace(self, stock=dict(self.stock), gets=dict(self.gets), crafts=list(self.crafts)) for _ in ways]
        for way, longer in zip(ways, tried, strict=True):
            longer._follow(way, missing)
        best = min(tried, key=len)
        self.stock, self.gets, self.crafts = best.stock, best.gets, best.crafts

    def _follow(self, recipe: Recipe, missing: int) -> None:
        times, items = -(-missing // recipe.count), []
        for part in recipe.ingredients:
            item, count = part.name, part.count * times
            if part.generic:
                kind = self.book.members[part.name]
                held = [item for item in kind if self.stock.get(item, 0) >= count]
                item = held[0] if held else min(kind, key=lambda item: (self.book.price(item), item))
            short = count - self.stock.get(item, 0)
            if short > 0 and self.book.recipes.get(item):
                self.craft(item, short)
            elif short > 0:
                self.gets[item] = self.gets.get(item, 0) + short
                self.stock[item] = count
            self.stock[item] -= count
            items.append(item)
        self.crafts += [(recipe, tuple(items))] * times
        self.stock[recipe.makes] = self.stock.get(recipe.makes, 0) + recipe.count * times


def plan(book: Book, goal: str, held: Mapping[str, int]) -> Plan:
    """What is left to get and craft, by backward search:

        need(item, n) = nothing if n are held, else `get` the missing ones, or apply a recipe as often as needed after
                        need(ingredient, count · times) for each ingredient

    Of several recipes, the one that adds the fewest commands is used. Surplus is used before more is crafted. Each raw item is
    fetched once, in the total number. A generic ingredient is one item: a held one if there are enough, else the cheapest.
    The goal itself is crafted once even if one is held, because crafting it ends the episode.
    """
    made = Plan(book, {item: count for item, count in held.items() if item != goal})
    made.craft(goal, 1)
    return made


class Crafter(ByReading):
    """Plans from the current inventory, so it can advise in any episode."""

    def __init__(self, task: Task) -> None:
        self._book, self._goal, _ = open_task(task)

    def act(self, observation: Observation) -> str:
        return plan(self._book, self._goal, parse_observation(observation.text).held).commands[0]
