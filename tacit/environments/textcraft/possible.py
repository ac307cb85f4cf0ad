"""What the recipes that are told make possible, as commands. The benchmark lists none: it is for whoever acts at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tacit.environments.textcraft.book import Book, Recipe, spoken

INVENTORY = "inventory"


class Possible:
    """Every raw ingredient in the numbers the recipes want, every recipe for which enough is held, and `inventory`. For a
    generic ingredient the first item is named that will do."""

    def __init__(self, book: Book, recipes: Sequence[Recipe]) -> None:
        parts = [part for recipe in recipes for part in recipe.of]
        raw = (f"get {part.count} {spoken(part.name)}" for part in parts if book.can_be_got(part.name))
        self._gets = tuple(dict.fromkeys(raw))
        self._crafts = [
            (f"craft {recipe.count} {spoken(recipe.makes)} using ", [(book.fitting(part), part.count) for part in recipe.of])
            for recipe in recipes
        ]

    def __call__(self, held: Mapping[str, int]) -> tuple[str, ...]:
        crafts = []
        for beginning, parts in self._crafts:
            chosen = []
            for items, count in parts:
                for item in items:
                    if item in held and held[item] >= count:
                        chosen.append(f"{count} {spoken(item)}")
                        break
                else:
                    break
            else:
                crafts.append(beginning + ", ".join(chosen))
        return (*self._gets, *crafts, INVENTORY)
