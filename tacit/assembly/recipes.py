"""Recipes travel in the package and go by name: `quickstart`, `comparisons/step-credit`, or `step-credit` alone.

Each begins with comments: a line that says what it is, and the command that runs it. `tacit list recipes` shows both.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import tacit
from tacit.core.errors import TacitError, unknown

FOLDER = Path(tacit.__file__).parent / "recipes"
Kind = Literal["run", "comparison", "script"]


@dataclass(frozen=True)
class Packaged:
    """A recipe of the package."""

    name: str
    """its place under the folder of recipes, without the ending"""
    path: Path
    kind: Kind
    summary: str
    """its first comment line"""
    command: str
    """what runs it, as its own comments say"""


def find_recipe(name: str, kind: Kind | None = None) -> Path:
    """The file that `name` means: a path where there is such a file, else a recipe of the package (of the kind, where one is
    asked for), with or without its folder and its ending."""
    if Path(name).is_file():
        return Path(name)
    wanted = name.removesuffix(".toml").removesuffix(".sh")
    found = [recipe for recipe in packaged() if wanted in (recipe.name, recipe.path.stem)]
    for recipe in found:
        if kind in (recipe.kind, None):
            return recipe.path
    if found:
        raise TacitError(f"{found[0].name} is a {found[0].kind}: it is run with `{found[0].command}`.")
    known = [recipe.name if "/" in wanted else recipe.path.stem for recipe in packaged() if kind in (recipe.kind, None)]
    raise TacitError(f"{unknown('recipe', wanted, known)} A file of your own goes by its path, and there is none at {name}.")


def run_recipe(name: str) -> Path:
    """A file for `tacit train` and `tacit modules train`."""
    return find_recipe(name, "run")


def comparison_recipe(name: str) -> Path:
    """A file for `tacit compare`."""
    return find_recipe(name, "comparison")


@cache
def packaged() -> tuple[Packaged, ...]:
    """All there are, those of the top folder first."""
    files = [path for path in FOLDER.rglob("*") if path.suffix in (".toml", ".sh")]
    if not files:
        raise TacitError(f"there are no recipes in {FOLDER}: this installation is incomplete.")
    return tuple(_read(path) for path in sorted(files, key=lambda path: (len(path.relative_to(FOLDER).parts), path)))


def _read(path: Path) -> Packaged:
    text = path.read_text(encoding="utf-8")
    kind: Kind = "script" if path.suffix == ".sh" else "comparison" if "methods" in tomllib.loads(text) else "run"
    comments = [line.removeprefix("#") for line in text.replace("\\\n#", "").splitlines() if line.startswith("# ")]
    commands = [" ".join(line.split()) for line in comments if line.startswith("     ")]
    command = next(line for line in commands if path.stem in line)
    return Packaged(path.relative_to(FOLDER).with_suffix("").as_posix(), path, kind, comments[0].strip(), command)
