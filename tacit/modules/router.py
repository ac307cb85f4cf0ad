"""One base, many skills: the module that serves a task's family is put on, and the one before it taken off.

Only the active module is in memory. Changing it reads an adapter (megabytes) into the place of another; the base stays. Modules
that are whole models, or whose adapters have another shape, change the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.config.agents import Target, open_target
from tacit.config.checks import check_values, open_world, with_split
from tacit.config.recipe import Recipe, Said, anchored_name, override
from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.types import Task
from tacit.core.world import Environment, Expert
from tacit.engines.local.settings import EngineSettings
from tacit.modules.export import ADAPTER_CONFIG
from tacit.modules.module import Base, Module, find_modules, hash_modules, is_modules, make_context
from tacit.training.setup import evaluation_sampling

if TYPE_CHECKING:
    from tacit.engines.local.policy import LocalPolicy


@dataclass
class Loads:
    """What was read from disk so far."""

    models: int = 0
    adapters: int = 0


class Router:
    def __init__(
        self,
        modules: Mapping[str, Module],
        world: Environment,
        engine: EngineSettings | None = None,
        base: str | None = None,
        fallback: str | None = None,
    ) -> None:
        """`base` is where the base lies on this machine, if not where it was in training. `fallback` is the skill to use for
        families that no module serves; without it they are refused. What cannot work is refused before anything is loaded.
        """
        self.modules, self.world, self.fallback = dict(modules), world, fallback
        self.loads = Loads()
        # Nobody asks a player what its position is worth.
        self._engine = replace(engine or EngineSettings(), value_head=False)
        self._active: Module | None = None
        self._policy: LocalPolicy | None = None
        self._shape: Any = None
        self._base = base
        if fallback is not None and fallback not in self.modules:
            raise TacitError(f"fallback {fallback!r} is no module here; there are {self._names()}.")
        for module in self.modules.values():
            module.check_tracker(world)
            make_context(module.context, world)
            module.check_wording(world)
            module.check_base(self._base_of(module), world)

    def choose(self, family: str) -> Module:
        """The module for a family: of several, the one that serves the fewest."""
        serving = sorted((m for m in self.modules.values() if family in m.families), key=lambda m: len(m.families))
        if not serving:
            if self.fallback is not None:
                return self.modules[self.fallback]
            raise TacitError(
                f"no module serves family {family!r}; there are {self._names()}. Train one, name the module to fall back on "
                "(fallback=…, --fallback SKILL), or leave the family out (--families …)."
            )
        if len(serving) > 1 and len(serving[0].families) == len(serving[1].families):
            raise TacitError(f"{serving[0].path} and {serving[1].path} both serve family {family!r}; keep one of them.")
        return serving[0]

    def context(self, module: Module) -> Context:
        return make_context(module.context, self.world)

    def policy(self, module: Module) -> LocalPolicy:
        """The policy with this module on it. What was handed out before plays this module too from now on."""
        if self._policy is not None and module is self._active:
            return self._policy
        module.check_files()
        shape = shape_of(module)
        if not module.adapter or self._policy is None or shape != self._shape:
            self._policy = None  # before the next one is loaded: there may be no room for two
            self._policy = self._open(module, shape)
            self.loads.models += 1
        if module.adapter:
            self._policy.load_adapter(module.path)
            self.loads.adapters += 1
        self._active, self._shape = module, shape
        return self._policy

    def name(self, task: Task) -> str:
        return self.choose(task.family).skill

    def agent(self, name: str) -> tuple[Context, LocalPolicy]:
        module = self.modules[name]
        return self.context(module), self.policy(module)

    def _open(self, module: Module, shape: Any) -> LocalPolicy:
        from tacit.engines.local.policy import load_policy

        if not module.adapter:
            return load_policy(str(module.path), replace(self._engine, lora_rank=0))
        rank, alpha, targets = shape
        engine = replace(self._engine, lora_rank=rank, lora_alpha=alpha, lora_targets=targets)
        return load_policy(self._base_of(module).source(self.world), engine)

    def _base_of(self, module: Module) -> Base:
        return module.base.elsewhere(self._base)

    def _names(self) -> str:
        return ", ".join(f"{name} ({', '.join(module.families)})" for name, module in self.modules.items())


def shape_of(module: Module) -> tuple[int, float, tuple[str, ...]] | None:
    """Rank, scale and places of a LoRA adapter; None for a whole model."""
    if not module.adapter:
        return None
    config = json.loads((module.path / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    return config["r"], float(config["lora_alpha"]), tuple(sorted(config["target_modules"]))


# Skill modules as players: a module, or a directory of them of which each plays its families.

OPEN = {(name,) for name in ("seed", "families", "workers", "workers_at", "world_timeout_s", "max_tokens", "world")} | {
    ("engine", name) for name in ("device", "dtype", "threads", "token_budget", "max_batch", "compile")
}
"""what may be said about modules, beside the panel and the sampling; the rest was decided when they were trained"""


def open_agent(
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

    modules = find_modules(path)
    recipe = module_recipe(path, modules, said)
    world = open_world(recipe.world)
    check_values(recipe)
    recipe = with_split(recipe, world)
    router = Router(modules, world, recipe.engine, base, fallback)
    first = next(iter(modules.values()))
    context, policy = router.agent(first.skill)
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
