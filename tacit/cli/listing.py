"""`tacit list`: worlds, methods, engines, models, panels and recipes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from tacit.cli.terminal import make_console, say, table
from tacit.config import catalogue
from tacit.config.checks import find_world
from tacit.config.flags import Parser
from tacit.config.recipe import find_recipe, packaged
from tacit.core.errors import TacitError, unknown
from tacit.worlds import REGISTRY as WORLDS

SUMMARY_LINE = "List worlds, methods, engines, models, panels or recipes (default: the first four)."
KINDS = ("worlds", "methods", "engines", "models", "panels", "recipes")


def run(argv: Sequence[str]) -> int:
    parser = Parser("list", SUMMARY_LINE)
    parser.add_argument("kind", nargs="?", metavar="|".join(KINDS), help="what to list")
    parser.add_argument("name", nargs="?", metavar="RECIPE", help="with `recipes`: print the path of this one")
    parser.flag("--world", None, "only this world", "NAME")
    arguments, _ = parser.parse(argv)
    if arguments.kind not in (*KINDS, None):
        raise unknown("list", arguments.kind, KINDS)
    if arguments.name is not None:
        return _locate(arguments.kind, arguments.name)
    console = make_console()
    worlds = [arguments.world] if arguments.world else list(WORLDS.names)
    if arguments.world:
        find_world(arguments.world)
    for kind in [arguments.kind] if arguments.kind else KINDS[:4]:
        console.print(_make_table(kind, worlds))
        if kind == "worlds":
            for remedy in install_hints(worlds):
                say(console, remedy)
            if arguments.kind:
                console.print()
                console.print(list_parts(worlds))
            else:
                say(console, "`tacit list worlds` also shows experts, splits and families.", style="dim")
        if arguments.kind is None:
            console.print()
    if arguments.kind == "recipes":
        say(console, 'A copy to change: cp "$(tacit list recipes NAME)" my.toml')
    if arguments.kind is None:
        say(console, "Your own world, method or engine: package.module:NAME or path/to/file.py:NAME.")
    return 0


def _make_table(kind: str, worlds: Sequence[str]) -> Table:
    match kind:
        case "worlds":
            return list_worlds(worlds)
        case "methods":
            return table("Methods", ("method", "what it is"), list(catalogue.methods().items()))
        case "engines":
            return table("Engines", ("engine", "what it is, and what it can do"), list(catalogue.engines().items()))
        case "models":
            return table("Models", ("model", "what it is"), list(catalogue.models().items()))
        case "panels":
            title = "Panels (any other size: WORLD/SPLIT/TASKS)"
            return table(title, ("panel", "hash", "what it is"), catalogue.panels(worlds))
    rows = [(recipe.name, recipe.summary, recipe.command) for recipe in packaged()]
    return table("Recipes", ("recipe", "what it is", "run with"), rows)


def list_worlds(names: Sequence[str]) -> Table:
    rows = []
    for name, world in catalogue.find_worlds(names).items():
        if isinstance(world, str):
            rows.append((name, "no", "", world))
        else:
            rows.append((name, "no" if world.remedy else "yes", str(world.max_steps), world.summary))
    return table("Worlds", ("world", "ready", "steps", "what it is"), rows, numbers=("ready", "steps"))


def list_parts(names: Sequence[str]) -> Table:
    """Splits, families and skills of each world, in a second table: eight columns do not fit a terminal."""
    rows = []
    for name, world in catalogue.find_worlds(names).items():
        if not isinstance(world, str):
            skills = str(len(world.alphabet.skills)) if world.alphabet else "-"
            named = (", ".join(some) or "-" for some in (world.experts, world.splits, world.families))
            rows.append((name, skills, *named))
    return table("Their parts", ("world", "skills", "expert", "splits", "families"), rows, numbers=("skills",))


def install_hints(names: Sequence[str]) -> list[str]:
    """How to install what is missing, on separate lines, so that commands can be copied."""
    found = catalogue.find_worlds(names).items()
    return [f"{name} {world.remedy}" for name, world in found if not isinstance(world, str) and world.remedy]


def _locate(kind: str, name: str) -> int:
    if kind != "recipes":
        raise TacitError(f"`tacit list {kind}` takes no name; for the path of a recipe use `tacit list recipes {name}`.")
    print(find_recipe(name).resolve())
    return 0
