"""What the commands of `tacit modules` share: where a module comes from, and how modules are shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.assembly.checks import open_world
from tacit.assembly.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import read_settings, saved_checkpoints
from tacit.training.practice import completion_limit, evaluation_sampling

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.modules.export import Trained
    from tacit.modules.module import Module

CHECKPOINT_HELP = "newest, best, sft, rl, or a name such as rl-000020 (default: newest)"


def trained_by(run: Path) -> Trained:
    """What the run at this place knows of the policy it made."""
    from tacit.modules.base import Base
    from tacit.modules.export import Trained

    document = read_settings(run)
    recipe = Recipe.from_json(document)
    world = open_world(recipe.world)
    context = recipe.settings.context(world)
    return Trained(
        path=run,
        world=world,
        world_name=recipe.world,
        families=recipe.train.family_names,
        context=context,
        base=Base(recipe.model, recipe.train.seed, recipe.tiny),
        sampling=evaluation_sampling(recipe.train, completion_limit(recipe.train, context, world)),
        max_steps=recipe.train.evaluation.max_steps or world.max_steps,
        settings=document,
    )


def find_checkpoint(run: Path, name: str) -> Checkpoint:
    saved = saved_checkpoints(run)
    if not saved.all():
        raise TacitError(f"{run} has no checkpoint yet, so there is nothing to export.")
    return saved.find(name)


def show_modules(console: Console, modules: Mapping[str, Module]) -> None:
    from tacit.cli.terminal import say, table

    columns = ("skill", "families", "base", "tracker", "after SFT", "after RL", "episodes", "size")
    rows = []
    for skill, module in modules.items():
        measured = module.scores.get("rl") or module.scores.get("sft")
        rows.append(
            (
                skill,
                ", ".join(module.families),
                f"{module.base.model} {module.fingerprint[:12]}" if module.adapter else "own weights",
                module.tracker or "-",
                _score(module.scores.get("sft")),
                _score(module.scores.get("rl")),
                str(measured["episodes"]) if measured else "-",
                _bytes(module.size),
            )
        )
    console.print(table("", columns, rows, numbers=("after SFT", "after RL", "episodes", "size")))
    for panel in dict.fromkeys((s["panel"], s["panel_hash"]) for m in modules.values() for s in m.scores.values()):
        say(console, f"panel {panel[0]} (hash {panel[1]})", style="dim")


def _score(score: Mapping[str, Any] | None) -> str:
    from tacit.cli.terminal import interval, percent

    return f"{percent(score['success'])} {interval(score['interval'])}" if score else "-"


def _bytes(size: float) -> str:
    """
    >>> _bytes(75_000)
    '75.0 kB'
    """
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.1f} {unit}" if unit != "B" else f"{size:.0f} B"
        size /= 1000
    return f"{size:.1f} GB"
