"""Skill modules as players: a module, or a directory of them of which each plays its families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tacit.assembly.anchoring import anchored_name
from tacit.assembly.checks import check_values, open_world, with_split
from tacit.assembly.players import Target, open_target
from tacit.assembly.recipe import Recipe, Said, override
from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.core.world import Expert
from tacit.modules.module import Module, find_modules, hash_modules, is_modules
from tacit.training.practice import evaluation_sampling

OPEN = {(name,) for name in ("seed", "families", "workers", "workers_at", "world_timeout_s", "max_tokens", "world")} | {
    ("engine", name) for name in ("device", "dtype", "threads", "token_budget", "max_batch", "compile")
}
"""what may be said about modules, beside the panel and the sampling; the rest was decided when they were trained"""


def open_player(
    name: str,
    said: Said,
    checkpoint: str = "",
    actor: Callable[[Task], Expert] | None = None,
    base: str | None = None,
    fallback: str | None = None,
) -> Target:
    """Whoever `open_target` knows, or skill modules; `base` and `fallback` are for those."""
    path = home_of_modules(Path(name).expanduser())
    if actor is None and not checkpoint and is_modules(path):
        return open_modules(path, said, base, fallback)
    return open_target(name, said, checkpoint, actor)


def home_of_modules(path: Path) -> Path:
    """Where the modules are: here, or in the one directory here that holds some."""
    if is_modules(path) or not path.is_dir():
        return path
    homes = [inside for inside in sorted(path.iterdir()) if not inside.name.startswith(".") and is_modules(inside)]
    if len(homes) > 1:
        raise TacitError(f"{path} holds several directories of modules; name one of them: {', '.join(map(str, homes))}.")
    return homes[0] if homes else path


def open_modules(path: Path, said: Said, base: str | None, fallback: str | None) -> Target:
    """A skill module, or a directory of them of which each plays its families. They read what they were trained to read."""
    from tacit.modules.router import Router

    modules = find_modules(path)
    recipe = module_recipe(path, modules, said)
    world = open_world(recipe.world)
    check_values(recipe)
    recipe = with_split(recipe, world)
    router = Router(modules, world, recipe.engine, base, fallback)
    first = next(iter(modules.values()))
    context, policy = router.player(first.skill)
    sampling = evaluation_sampling(recipe.train, recipe.train.max_tokens or first.sampling.max_tokens)
    identity = hash_modules(modules.values(), fallback)
    return Target(str(path), recipe, world, context, policy, sampling, recipe.train.seed, identity=identity, several=router)


def module_recipe(path: Path, modules: Mapping[str, Module], said: Said) -> Recipe:
    """One module's own settings make it repeat its number; several are measured on all families, unless some are named, with
    the panel and the sampling of the first and room for the longest action of any."""
    worlds = sorted({module.world for module in modules.values()})
    if len(worlds) > 1:
        raise TacitError(f"the modules in {path} are of several worlds ({', '.join(worlds)}); name one of them.")
    for place, value in said.items():
        if place == ("world",) and anchored_name(value) != anchored_name(worlds[0]):
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
