"""`tacit list`: the worlds, methods, models, panels and recipes there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tacit.assembly.checks import open_world
from tacit.assembly.flags import Parser
from tacit.assembly.recipes import find_recipe, packaged
from tacit.core.errors import TacitError, unknown
from tacit.core.world import Environment
from tacit.engines.models.bases import BASES, FOLDER, read_manifest
from tacit.engines.models.tiny import TINY_SIZES
from tacit.environments import WORLDS
from tacit.evaluation.panels import Panel
from tacit.methods import METHODS, get_method
from tacit.training.settings import EvaluationSettings

if TYPE_CHECKING:
    from rich.table import Table

SUMMARY_LINE = "List worlds, methods, models, panels or recipes; without a word, the first three."
KINDS = ("worlds", "methods", "models", "panels", "recipes")


def run(argv: Sequence[str]) -> int:
    parser = Parser("list", SUMMARY_LINE)
    parser.add_argument("kind", nargs="?", metavar="|".join(KINDS), help="what to list")
    parser.add_argument("name", nargs="?", metavar="RECIPE", help="after `recipes`: only say where this one lies")
    parser.add_argument("--world", metavar="NAME", help="only this world (its panels, with their hashes)")
    arguments, _ = parser.parse(argv)
    if arguments.kind not in (*KINDS, None):
        raise unknown("list", arguments.kind, KINDS)
    if arguments.name is not None:
        return _locate(arguments.kind, arguments.name)
    from tacit.cli.terminal import make_console, say

    console = make_console()
    worlds = [arguments.world] if arguments.world else list(WORLDS)
    if arguments.world:
        open_world(arguments.world)
    makers = {"worlds": lambda: list_worlds(worlds), "methods": list_methods, "models": list_models}
    makers |= {"panels": lambda: list_panels(worlds), "recipes": list_recipes}
    for kind in [arguments.kind] if arguments.kind else KINDS[:3]:
        console.print(makers[kind]())
        if arguments.kind is None:
            console.print()
    if arguments.kind == "recipes":
        say(console, 'A copy to change: cp "$(tacit list recipes NAME)" my.toml')
    if arguments.kind is None:
        say(console, "Your own world or method: package.module:NAME or path/to/file.py:NAME.")
    return 0


def list_worlds(names: Sequence[str]) -> Table:
    from tacit.cli.terminal import table

    columns = ("world", "what it is", "splits", "families", "steps", "skills", "expert")
    rows = []
    for name in names:
        world = _try(name)
        if isinstance(world, str):
            rows.append((name, f"not available: {world}", "", "", "", "", ""))
            continue
        skills = str(len(world.alphabet.skills)) if world.alphabet else "-"
        experts = ", ".join(world.experts) or "-"
        splits, families = ", ".join(world.splits), ", ".join(world.families)
        rows.append((name, world.summary, splits, families, str(world.max_steps), skills, experts))
    return table("Worlds", columns, rows, numbers=("steps", "skills"))


def list_methods() -> Table:
    from tacit.cli.terminal import table

    rows = []
    for name in METHODS:
        lines = (get_method(name).__doc__ or "").strip().splitlines()
        rows.append((name, lines[0] if lines else ""))
    return table("Methods", ("method", "what it is"), rows)


def list_models() -> Table:
    from tacit.cli.terminal import table

    rows = [
        (name, f"from scratch, {s.layers} layers of width {s.hidden}, {_millions(name)} parameters, reads {s.context} tokens")
        for name, s in TINY_SIZES.items()
    ]
    for name in BASES:
        about = read_manifest(FOLDER / name)
        size = f"{about['parameters'] / 1e6:.1f}M parameters, reads {about['sizes']['context']} tokens"
        rows.append((name, f"pretrained on random play and questions in {', '.join(about['episodes'])}; {size}"))
    rows.append(("smollm2", "SmolLM2-135M-Instruct: `tacit prepare smollm2 DIR` makes a checkpoint, then --model DIR"))
    rows.append(("path/to/checkpoint", "any causal language model saved by transformers"))
    rows.append(("owner/name", "any causal language model of the Hugging Face hub"))
    return table("Models", ("model", "what it is"), rows)


def list_panels(names: Sequence[str]) -> Table:
    from tacit.cli.terminal import table

    count, rows = EvaluationSettings().tasks, []
    for name in names:
        world = _try(name)
        if isinstance(world, str):
            rows.append((name, "-", f"not available: {world}"))
            continue
        for split in world.splits:
            try:
                panel = Panel.of(world, split, count)
                usual = ", measured on where none is named" if split == world.panel_split else ""
                rows.append((panel.name, panel.hash, f"{len(panel.tasks)} tasks of split {split}{usual}"))
            except TacitError as error:
                rows.append((f"{name}/{split}", "-", f"not available: {error}"))
    return table("Panels (any other size: WORLD/SPLIT/TASKS)", ("panel", "hash", "what it is"), rows)


def list_recipes() -> Table:
    from tacit.cli.terminal import table

    rows = [(recipe.name, recipe.summary, recipe.command) for recipe in packaged()]
    return table("Recipes", ("recipe", "what it is", "run with"), rows)


def _locate(kind: str, name: str) -> int:
    if kind != "recipes":
        raise TacitError(f"`tacit list {kind}` takes no name; `tacit list recipes {name}` would say where a recipe lies.")
    print(find_recipe(name).resolve())
    return 0


def _try(name: str) -> Environment | str:
    """The world, or why it cannot be had here: one broken world must not hide the others."""
    try:
        return open_world(name)
    except Exception as error:
        return str(error)


def _millions(name: str) -> str:
    """Parameters of a tiny Llama with tied embeddings."""
    s = TINY_SIZES[name]
    attention = 2 * s.hidden * s.hidden * (1 + s.kv_heads / s.heads)
    layer = attention + 3 * s.hidden * s.intermediate + 2 * s.hidden
    return f"{(s.vocab * s.hidden + s.layers * layer + s.hidden) / 1e6:.1f}M"
