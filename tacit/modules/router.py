"""Play several modules on one base model: the router loads the module that serves a task's family.

Only the active module is in memory. Switching replaces the adapter (megabytes); the base stays loaded. Full models, and
adapters of another rank or other target layers, reload the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.config.agents import Target, open_target
from tacit.config.checks import check_sampling, open_world
from tacit.config.recipe import Overrides, Recipe, absolute_name, override
from tacit.core.errors import TacitError
from tacit.core.files import read_json
from tacit.core.method import Context
from tacit.core.tasks import GoalClassifier
from tacit.core.types import Task
from tacit.core.world import Environment, Expert
from tacit.engines.local.settings import EngineSettings
from tacit.modules.export import ADAPTER_CONFIG
from tacit.modules.module import Module, find_modules, has_modules, hash_modules, make_context
from tacit.training.setup import evaluation_sampling

if TYPE_CHECKING:
    from tacit.engines.local.policy import LocalPolicy

GOALS = 512  # training tasks per world from which the router learns the words of its families


class Router:
    def __init__(
        self,
        modules: Mapping[str, Module],
        world: Environment | Mapping[str, Environment],
        engine: EngineSettings | None = None,
        base: str | None = None,
        fallback: str | None = None,
    ) -> None:
        """Check every module without loading any. `world` is the modules' world, or one for each name of a world in them.
        `base` overrides the base's path. `fallback` is the skill for families that no module serves; without one they are
        errors."""
        self.modules, self.fallback = dict(modules), fallback
        self.worlds = {m.world: world if isinstance(world, Environment) else world[m.world] for m in self.modules.values()}
        self.loads = Counter[str]()  # how often `models` and `adapters` were loaded
        self._engine = replace(engine or EngineSettings(), value_head=False)
        self._active: Module | None = None
        self._policy: LocalPolicy | None = None
        self._shape: Any = None
        self._base = base
        if fallback is not None and fallback not in self.modules:
            raise TacitError(f"fallback {fallback!r} is not one of the modules {self._names()}.")
        for module in self.modules.values():
            if mismatches := module.find_mismatches(self.worlds[module.world], base):
                raise TacitError(mismatches[0])

    @property
    def world(self) -> Environment:
        """the world of the modules; of several, the first"""
        return next(iter(self.worlds.values()))

    @cached_property
    def _goals(self) -> GoalClassifier:
        """Classifies a goal by world and family; trained on the goals of the worlds' training tasks."""
        examples = []
        for name, world in self.worlds.items():
            families = tuple(f for m in self.modules.values() if m.world == name for f in m.families)
            tasks = world.tasks_of(world.splits[0], GOALS, 0, families) if world.playable else ()
            examples += [(task.goal, f"{world.name}/{task.family}") for task in tasks]
        return GoalClassifier(examples)

    def find_task(self, goal: str, family: str = "", world: str = "") -> Task:
        """A task with this goal. Without a family, use the only one that is served, or classify the goal."""
        pairs = dict.fromkeys((self.worlds[m.world].name, own) for m in self.modules.values() for own in m.families)
        served = [(name, own) for name, own in pairs if family in ("", own) and world in ("", name)]
        if family and len({name for name, _ in served}) <= 1:
            return Task(served[0][0] if served else world or self.world.name, "", family, "", 0, goal)
        if len(served) != 1:
            try:
                served = [tuple(self._goals.classify(goal).split("/", 1))]  # type: ignore[list-item]
            except TacitError as error:
                raise TacitError(
                    f"the goal needs a family: {error}. Name it, begin(goal, family=…): {self._names()}."
                ) from error
        return Task(served[0][0], "", served[0][1], "", 0, goal)

    def choose(self, family: str, world: str = "") -> Module:
        """The module that serves a family of a world (empty: of any world). If several do, the one with the fewest families."""
        among = [m for m in self.modules.values() if not world or len(self.worlds) == 1 or self.worlds[m.world].name == world]
        serving = sorted((m for m in among if family in m.families), key=lambda m: len(m.families))
        if not serving:
            if self.fallback is not None:
                return self.modules[self.fallback]
            raise TacitError(
                f"no module serves family {family!r}; the modules are {self._names()}. Train one, choose a fallback "
                "(fallback=…, --fallback SKILL), or leave the family out (--families …)."
            )
        if len(serving) > 1 and len(serving[0].families) == len(serving[1].families):
            raise TacitError(f"{serving[0].path} and {serving[1].path} both serve family {family!r}; keep one of them.")
        return serving[0]

    def context(self, module: Module) -> Context:
        return make_context(module.context, self.worlds[module.world])

    def policy(self, module: Module) -> LocalPolicy:
        """The policy with this module's weights. Adapters of one base share a policy object, so earlier results switch, too."""
        from tacit.engines.local.policy import load_policy

        if self._policy is not None and module is self._active:
            return self._policy
        module.check_files()
        shape = adapter_shape(module)
        if not module.adapter or self._policy is None or shape != self._shape:
            self._policy = None  # free it first: two models may not fit in memory
            engine, source = replace(self._engine, lora_rank=0), str(module.path)
            if shape is not None:
                rank, alpha, targets = shape
                engine = replace(self._engine, lora_rank=rank, lora_alpha=alpha, lora_targets=targets)
                source = module.base.with_model(self._base).source(self.worlds[module.world])
            self._policy = load_policy(source, engine)
            self.loads["models"] += 1
        if module.adapter:
            self._policy.load_adapter(module.path)
            self.loads["adapters"] += 1
        self._active, self._shape = module, shape
        return self._policy

    def name(self, task: Task) -> str:
        module = self.choose(task.family, task.world)
        return next(name for name, own in self.modules.items() if own is module)

    def agent(self, name: str) -> tuple[Context, LocalPolicy]:
        module = self.modules[name]
        return self.context(module), self.policy(module)

    def _names(self) -> str:
        return ", ".join(f"{name} ({', '.join(module.families)})" for name, module in self.modules.items())


def adapter_shape(module: Module) -> tuple[int, float, tuple[str, ...]] | None:
    """Rank, alpha and target modules of a LoRA adapter; None for a full model."""
    if not module.adapter:
        return None
    config = read_json(module.path / ADAPTER_CONFIG)
    return config["r"], float(config["lora_alpha"]), tuple(sorted(config["target_modules"]))


# Modules as evaluation targets

CHANGEABLE = {(name,) for name in ("seed", "families", "workers", "workers_at", "world_timeout_s", "max_tokens", "world")} | {
    ("engine", name) for name in ("device", "dtype", "threads", "token_budget", "max_batch")
}  # settings that may be overridden, besides `evaluation`; training fixed the others


def open_agent(
    name: str,
    overrides: Overrides,
    checkpoint: str = "",
    actor: Callable[[Task], Expert] | None = None,
    base: str | None = None,
    fallback: str | None = None,
) -> Target:
    """Open modules, or anything that `open_target` accepts. `base` and `fallback` apply to modules."""
    path = find_modules_directory(Path(name).expanduser())
    if actor is None and not checkpoint and has_modules(path):
        return open_modules(path, overrides, base, fallback)
    return open_target(name, overrides, checkpoint, actor)


def find_modules_directory(path: Path) -> Path:
    """`path` if it has modules, else the only directory in it that has some, else `path`."""
    directories = list_modules_directories(path)
    if len(directories) > 1:
        raise TacitError(f"{path} has several directories of modules; choose one: {', '.join(map(str, directories))}.")
    return directories[0]


def list_modules_directories(path: Path) -> list[Path]:
    """`path` if it has modules, else the directories in it that have some, else `path`."""
    if has_modules(path) or not path.is_dir():
        return [path]
    return [inside for inside in sorted(path.iterdir()) if not inside.name.startswith(".") and has_modules(inside)] or [path]


def open_modules(path: Path, overrides: Overrides, base: str | None, fallback: str | None) -> Target:
    """A module, or a directory of modules of which each plays its families."""
    modules = find_modules(path)
    recipe = module_recipe(path, modules, overrides)
    world = open_world(recipe.world)
    recipe = check_sampling(recipe, world, loads=False)
    router = Router(modules, world, recipe.engine, base, fallback)
    first = next(iter(modules.values()))
    context, policy = router.agent(first.skill)
    sampling = evaluation_sampling(recipe.train, recipe.train.max_tokens or first.sampling.max_tokens)
    identity = hash_modules(modules.values(), fallback)
    return Target(str(path), recipe, world, context, policy, sampling, recipe.train.seed, identity=identity, several=router)


def module_recipe(path: Path, modules: Mapping[str, Module], overrides: Overrides) -> Recipe:
    """The settings to evaluate modules with: the first module's, overridden by `overrides`. Several modules default to all
    families, and to the largest `max_tokens` of any."""
    worlds = sorted({module.world for module in modules.values()})
    if len(worlds) > 1:
        raise TacitError(f"the modules in {path} are for several worlds ({', '.join(worlds)}); choose one of them.")
    for key, value in overrides.items():
        if key == ("world",) and absolute_name(value) != absolute_name(worlds[0]):
            raise TacitError(f"the modules in {path} are for world {worlds[0]!r}, not {value!r}.")
        if key not in CHANGEABLE and key[0] != "evaluation":
            raise TacitError(
                f"{'.'.join(key)} = {value}: fixed when the module was trained. The panel (split, tasks, families, …), the "
                "sampling and the device can be changed."
            )
    first = next(iter(modules.values()))
    document = dict(first.run["settings"])
    if len(modules) > 1:
        document["families"] = ""
        document["max_tokens"] = max(module.sampling.max_tokens for module in modules.values())
    return Recipe.from_json(override(document, overrides))
