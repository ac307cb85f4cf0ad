"""Settings of an evaluation of skill modules: those of the runs they come from, and the few that a player may change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli.settings.recipe import Recipe, Said, override
from tacit.core.errors import TacitError

if TYPE_CHECKING:
    from tacit.cli.settings.options import Parser
    from tacit.modules.module import Module

OPEN = {("seed",), ("families",), ("workers",), ("world_timeout_s",), ("max_tokens",), ("world",)} | {
    ("engine", name) for name in ("device", "dtype", "threads", "token_budget", "max_batch", "compile")
}
"""what may be said about modules, beside the panel and the sampling; the rest was decided when they were trained"""


def add_module_flags(parser: Parser) -> None:
    group = parser.add_argument_group("skill modules")
    group.add_argument("--base-model", metavar="MODEL", help="where their base lies, if not where it was in training")
    group.add_argument("--fallback", metavar="SKILL", help="the module for families that none is for (default: refuse them)")


def module_recipe(path: Path, modules: Mapping[str, Module], said: Said) -> Recipe:
    """One module's own settings make it repeat its number; several are measured on all families, unless some are named, with
    the panel and the sampling of the first and room for the longest action of any."""
    worlds = sorted({module.world for module in modules.values()})
    if len(worlds) > 1:
        raise TacitError(f"the modules in {path} are of several worlds ({', '.join(worlds)}); name one of them.")
    for place, value in said.items():
        if place == ("world",) and value != worlds[0]:
            raise TacitError(f"the modules in {path} are for world {worlds[0]!r}, not {value!r}.")
        if place not in OPEN and place[0] != "evaluation":
            raise TacitError(
                f"{'.'.join(place)} = {value}: a module reads and acts as it was trained to. What may be changed are the panel "
                f"(split, tasks, families, …), the sampling and the device."
            )
    first = next(iter(modules.values()))
    document = dict(first.run["settings"])
    if len(modules) > 1:
        document["families"] = ""
        document["max_tokens"] = max(module.sampling.max_tokens for module in modules.values())
    return Recipe.from_json(override(document, said))
