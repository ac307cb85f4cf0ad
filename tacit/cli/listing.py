"""`tacit list`: worlds, methods, engines, models, panels and recipes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.table import Table

from tacit.cli.terminal import make_console, say, table
from tacit.config.checks import find_world
from tacit.config.flags import Parser
from tacit.config.recipe import find_recipe, packaged
from tacit.core.errors import TacitError, unknown
from tacit.core.progress import pluralize
from tacit.core.world import Environment
from tacit.engines import REGISTRY as ENGINES
from tacit.engines import get_engine
from tacit.engines.models.bases import BASES, FOLDER, read_manifest
from tacit.engines.models.tiny import TINY_SIZES
from tacit.evaluation.panels import Panel
from tacit.methods import REGISTRY as METHODS
from tacit.methods import get_method
from tacit.planning.shapes import ModelShape
from tacit.worlds import REGISTRY as WORLDS

KINDS = ("worlds", "methods", "engines", "models", "panels", "recipes")
NamedRows = list[tuple[str, str]]


def run(argv: Sequence[str]) -> int:
    parser = Parser("list", "List worlds, methods, engines, models, panels or recipes (default: the first four).")
    parser.add_argument("kind", nargs="?", metavar="|".join(KINDS), help="what to list")
    parser.add_argument("name", nargs="?", metavar="RECIPE", help="with `recipes`: print the path of this one")
    parser.flag("--world", None, "only this world", "NAME")
    arguments, _ = parser.parse(argv)
    if arguments.kind not in (*KINDS, None):
        raise unknown("list", arguments.kind, KINDS)
    if arguments.name is not None:
        if arguments.kind != "recipes":
            remedy = f"for the path of a recipe use `tacit list recipes {arguments.name}`"
            raise TacitError(f"`tacit list {arguments.kind}` takes no name; {remedy}.")
        print(find_recipe(arguments.name).resolve())
        return 0
    console = make_console()
    if arguments.world:
        find_world(arguments.world)
    worlds = find_worlds([arguments.world] if arguments.world else WORLDS.names)
    for kind in [arguments.kind] if arguments.kind else KINDS[:4]:
        console.print(_make_table(kind, worlds))
        if kind == "worlds":
            # on separate lines, so that commands can be copied
            for name, world in worlds.items():
                if not isinstance(world, str) and world.remedy:
                    say(console, f"{name} {world.remedy}")
            if arguments.kind:
                console.print()
                console.print(_make_table("parts", worlds))
            else:
                say(console, "`tacit list worlds` also shows experts, splits and families.", style="dim")
        if arguments.kind is None:
            console.print()
    if arguments.kind == "recipes":
        say(console, 'A copy to change: cp "$(tacit list recipes NAME)" my.toml')
    if arguments.kind is None:
        say(console, "Your own world, method or engine: package.module:NAME or path/to/file.py:NAME.")
        say(console, "See also `tacit list recipes` and `tacit list panels`.", style="dim")
    return 0


def find_worlds(names: Iterable[str]) -> dict[str, Environment | str]:
    """Every world, or the reason it cannot be imported; one broken world must not hide the others."""
    worlds: dict[str, Environment | str] = {}
    for name in names:
        try:
            worlds[name] = find_world(name)
        except Exception as error:
            worlds[name] = f"not available: {error}"
    return worlds


def _make_table(kind: str, worlds: dict[str, Environment | str]) -> Table:
    if kind == "worlds":
        rows = []
        for name, world in worlds.items():
            details = ("", world) if isinstance(world, str) else (str(world.max_steps), world.summary)
            rows.append((name, "no" if isinstance(world, str) or world.remedy else "yes", *details))
        return table("Worlds", ("world", "ready", "steps", "what it is"), rows, numbers=("ready", "steps"))
    if kind == "parts":  # of worlds, in a table of their own: eight columns do not fit a terminal
        parts = []
        for name, world in worlds.items():
            if not isinstance(world, str):
                skills = str(len(world.alphabet.skills)) if world.alphabet else "-"
                lists = (", ".join(some) or "-" for some in (world.experts, world.splits, world.families))
                parts.append((name, skills, *lists))
        return table("Their parts", ("world", "skills", "expert", "splits", "families"), parts, numbers=("skills",))
    if kind == "panels":
        return table("Panels (any other size: WORLD/SPLIT/TASKS)", ("panel", "hash", "what it is"), list_panels(worlds))
    if kind == "recipes":
        recipes = [(recipe.name, recipe.summary, recipe.command) for recipe in packaged()]
        return table("Recipes", ("recipe", "what it is", "run with"), recipes)
    if kind == "methods":
        methods = _describe(METHODS.names, lambda name: next(iter((get_method(name).__doc__ or "").strip().splitlines()), ""))
        return table("Methods", ("method", "what it is"), methods)
    if kind == "engines":
        engines = _describe(
            ENGINES.names, lambda n: f"{get_engine(n).summary}; {', '.join(sorted(get_engine(n).capabilities))}"
        )
        return table("Engines", ("engine", "what it is, and what it can do"), engines)
    return table("Models", ("model", "what it is"), list_models())


def _describe(names: Iterable[str], describe: Callable[[str], str]) -> NamedRows:
    rows = []
    for name in names:
        try:
            rows.append((name, describe(name)))
        except TacitError as error:
            rows.append((name, f"not available: {error}"))
    return rows


def list_models() -> NamedRows:
    """(value of `--model`, summary)"""
    rows = []
    for name, s in TINY_SIZES.items():
        heads = (s.heads, s.kv_heads, s.hidden // s.heads)
        shape = ModelShape(name, s.layers, s.hidden, *heads, s.intermediate, s.vocab, tied=True)
        size = f"{shape.weights / 1e6:.1f}M parameters, reads {s.context} tokens"
        rows.append((name, f"from scratch, {s.layers} layers of width {s.hidden}, {size}"))
    for name in BASES:
        about = read_manifest(FOLDER / name)
        size = f"{about['parameters'] / 1e6:.1f}M parameters, reads {about['sizes']['context']} tokens"
        rows.append((name, f"pretrained on random play and questions in {', '.join(about['episodes'])}; {size}"))
    return [
        *rows,
        ("smollm2", "SmolLM2-135M-Instruct: `tacit prepare smollm2 DIR` makes a checkpoint, then --model DIR"),
        ("qwen", "Qwen2.5-Coder-1.5B-Instruct: `tacit prepare qwen DIR` makes a checkpoint, then --model DIR"),
        ("path/to/checkpoint", "any causal language model saved by transformers"),
        ("owner/name", "any causal language model of the Hugging Face hub"),
    ]


def list_panels(worlds: dict[str, Environment | str]) -> list[tuple[str, str, str]]:
    """(name, hash, summary) of each split's default panel"""
    rows = []
    for name, world in worlds.items():
        if isinstance(world, str):
            rows.append((name, "-", world))
            continue
        for split in world.splits:
            try:
                panel = Panel.of(world, split, world.panel_size(split))
            except TacitError as error:
                rows.append((f"{name}/{split}", "-", f"not available: {error}"))
                continue
            usual = ", the default" if split == world.panel_split else ""
            rows.append((panel.name, panel.hash, f"{pluralize(len(panel.tasks), 'task')} of split {split}{usual}"))
    return rows
