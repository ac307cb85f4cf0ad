"""The weights in memory: one base with all adapters of a shape on it at once, and modules that are whole models beside it.

Everything here is for the thread that touches the model.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from tacit.core.world import Environment
from tacit.engines.local.settings import EngineSettings
from tacit.modules.module import Module
from tacit.modules.router import shape_of

if TYPE_CHECKING:
    from tacit.engines.local.policy import LocalPolicy


class Bodies:
    def __init__(self, engine: EngineSettings, base: str | None) -> None:
        """`base` is where the base lies on this machine, if not where it was in training."""
        self._engine, self._base = replace(engine, value_head=False), base
        self._loaded: dict[Hashable, LocalPolicy] = {}
        self._made = 0

    def open(self, module: Module, world: Environment) -> LocalPolicy:
        """The policy that plays this module, and no other. Its files are checked as they are read."""
        module.check_files()
        shape = shape_of(module)
        if shape is None:
            return self._load(("model", self._next()), str(module.path), replace(self._engine, lora_rank=0))
        rank, alpha, targets = shape
        settings = replace(self._engine, lora_rank=rank, lora_alpha=alpha, lora_targets=targets)
        body = self._load((module.fingerprint, shape), module.base.elsewhere(self._base).source(world), settings)
        view = body.adapter(f"module-{self._next()}")
        try:
            view.load_adapter(module.path)
        except BaseException:
            body.engine.forget(view.name)  # refused at every refresh, it would stay in memory each time
            raise
        return view

    def bare(self) -> LocalPolicy | None:
        """The base without any module; None where all modules are whole models."""
        adapted = (body for body in self._loaded.values() if body.engine.adapters is not None)
        return next(adapted, None)

    def close(self, policy: LocalPolicy) -> None:
        """Give up a module's weights; the base stays."""
        if policy.engine.adapters is not None:
            policy.engine.forget(policy.name)
        else:
            self._loaded = {key: body for key, body in self._loaded.items() if body is not policy}

    def _load(self, key: Hashable, source: str, settings: EngineSettings) -> LocalPolicy:
        from tacit.engines.local.policy import load_policy

        if key not in self._loaded:
            self._loaded[key] = load_policy(source, settings)
        return self._loaded[key]

    def _next(self) -> int:
        """Never the same twice: a module that replaces another under its name is not mistaken for it."""
        self._made += 1
        return self._made
