"""One base, many skills: the module that serves a task's family is put on, and the one before it taken off.

Only the active module is in memory. Changing it reads an adapter (megabytes) into the place of another; the base stays. Modules
that are whole models, or whose adapters have another shape, change the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.engines.local.settings import EngineSettings
from tacit.modules.base import Base
from tacit.modules.export import ADAPTER_CONFIG
from tacit.modules.module import Module
from tacit.modules.prompting import make_context

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

    def player(self, name: str) -> tuple[Context, LocalPolicy]:
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
