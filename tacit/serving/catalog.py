"""The catalog: the served modules with their weights. Modules can be added and replaced while sessions run.

A session keeps the weights it began with until it ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.config.checks import open_world
from tacit.core.errors import TacitError, unknown
from tacit.core.method import Context
from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.engines.local.settings import EngineSettings
from tacit.modules.agent import Router, adapter_shape, find_modules_directory, find_weights
from tacit.modules.drafting.packaged import PackagedDraft
from tacit.modules.drafting.tracker import SandboxedDraft
from tacit.modules.module import Module, find_module_directories, make_context, read_module
from tacit.modules.sharing import find_problems
from tacit.serving.batching import BatchingThread, Result, WorkerThread, run_in_thread
from tacit.serving.requests import invalid, not_found

if TYPE_CHECKING:
    from tacit.engines.local.policy import LocalPolicy


CODE_S = 15.0  # timeout of a module's own code; a drafted tracker may take 12 s to start
REFRESH_S = 300.0


class ServedModule:
    """A module with its weights in memory."""

    def __init__(self, name: str, module: Module, world: Environment, context: Context, policy: LocalPolicy) -> None:
        self.name, self.module, self.world, self.context, self.policy = name, module, world, context, policy
        self.users = 0  # running sessions and requests
        self.draft = find_draft(context)  # the tracker, if it was drafted
        self._thread = WorkerThread(f"module {name}")
        self.tasks: dict[tuple[str, int, str], Task] = {}
        """the last tasks of its world that were played, by split, number and family"""

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run the module's own code (tracker, wording, chat template, tokenizer) off the event loop, one call at a time."""
        return await self._thread.do(work, CODE_S)

    def close(self) -> None:
        self._thread.close(self.draft.close if self.draft is not None else lambda: None)


def find_draft(context: Context) -> SandboxedDraft | None:
    return context.tracker if isinstance(context.tracker, SandboxedDraft) else None


def module_name(world: Environment, module: Module) -> str:
    return f"{world.name}/{module.skill}"


def describe_module(module: Module, world: Environment) -> dict[str, Any]:
    return {
        "name": module_name(world, module),
        "world": world.name,
        "skill": module.skill,
        "families": list(module.families),
        "digest": module.digest,
        "tracker": module.tracker,
        "base": {"model": module.base.model, "fingerprint": module.fingerprint},
        "max_steps": module.max_steps,
        "splits": list(world.splits),
        "scores": {stage: dict(score) for stage, score in module.scores.items()},
    }


class LoadedModels:
    """Loaded weights: one base per adapter shape, with all its adapters; full models. For the batching thread only."""

    def __init__(self, engine: EngineSettings, base: str | None) -> None:
        self._engine, self._base = replace(engine, value_head=False), base
        self._loaded: dict[Hashable, LocalPolicy] = {}
        self._count = 0

    def open(self, module: Module, world: Environment) -> LocalPolicy:
        module.check_files()
        shape, weights = adapter_shape(module), find_weights(module, self._engine, self._base, world)
        if shape is None:
            return self._load(("model", self._next()), *weights)
        base = self._load((module.fingerprint, shape), *weights)
        policy = base.adapter(f"module-{self._next()}")
        try:
            policy.load_adapter(module.path)
        except BaseException:
            base.engine.remove_adapter(policy.name)  # otherwise every failed refresh would leak an adapter
            raise
        return policy

    def base_policy(self) -> LocalPolicy | None:
        """The base without an adapter; None if all modules are full models."""
        return next((policy for policy in self._loaded.values() if policy.engine.adapters is not None), None)

    def close(self, policy: LocalPolicy) -> None:
        """Unload a module's weights; the base stays."""
        if policy.engine.adapters is not None:
            policy.engine.remove_adapter(policy.name)
        else:
            self._loaded = {key: other for key, other in self._loaded.items() if other is not policy}

    def _load(self, key: Hashable, source: str, settings: EngineSettings) -> LocalPolicy:
        from tacit.engines.local.policy import load_policy

        if key not in self._loaded:
            self._loaded[key] = load_policy(source, settings)
        return self._loaded[key]

    def _next(self) -> int:
        """A unique number, so that a replaced module and its successor have different keys."""
        self._count += 1
        return self._count


ApproveDraft = Callable[[str, PackagedDraft], bool]


@dataclass(frozen=True)
class Changes:
    """What a refresh changed. A refused module stays served in its old version, if there was one."""

    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # name or path -> why


class Catalog:
    def __init__(
        self,
        paths: Sequence[Path],
        batching: BatchingThread,
        engine: EngineSettings | None = None,
        base: str | None = None,
        fallback: str | None = None,
        approve_draft: ApproveDraft = lambda name, draft: False,
    ) -> None:
        """`approve_draft` shows a module's draft and returns whether it may run. It is called once per draft."""
        self._paths, self._batching = list(paths), batching
        self._approve_draft, self._drafts = approve_draft, dict[str, bool]()
        self._engine, self._base, self._fallback = engine or EngineSettings(), base, fallback
        self._models = LoadedModels(self._engine, base)
        self._refreshing = asyncio.Lock()
        self.modules: dict[str, ServedModule] = {}
        self.base_policy: LocalPolicy | None = None  # the base without an adapter
        self._routers: dict[str, Router] = {}

    async def refresh(self) -> Changes:
        """Read the directories again: add new modules, replace changed ones, remove missing ones."""
        async with self._refreshing:
            on_disk, refused = await run_in_thread(self.read_directories, REFRESH_S)
            changes = Changes(refused=refused)
            served_modules = {name: served for name, served in self.modules.items() if name in refused}
            for name, (module, world) in on_disk.items():
                current = self.modules.get(name)
                if current is not None and current.module == module:
                    served_modules[name] = current
                    continue
                try:
                    policy = await self._batching.call(partial(self._models.open, module, world))
                    served_modules[name] = ServedModule(name, module, world, make_context(module.context, world), policy)
                except Exception as error:
                    changes.refused[name] = _describe_failure(error, module.path)
                    if current is not None:
                        served_modules[name] = current
                    continue
                (changes.added if current is None else changes.replaced).append(name)
            changes.removed.extend(name for name in self.modules if name not in served_modules)
            self._routers = {}
            for world in {served.world.name: served.world for served in served_modules.values()}.values():
                modules = {o.module.skill: o.module for o in served_modules.values() if o.world.name == world.name}
                fallback = self._fallback if self._fallback in modules else None
                self._routers[world.name] = Router(modules, world, self._engine, self._base, fallback)
            before, self.modules = self.modules, served_modules
            self.base_policy = await self._batching.call(self._models.base_policy)
            for served in before.values():
                await self._retire(served)
            return changes

    def close(self) -> None:
        for served in self.modules.values():
            served.close()

    def check_fallback(self) -> None:
        if self._fallback is not None and not any(router.fallback for router in self._routers.values()):
            raise TacitError(f"fallback {self._fallback!r} is not one of the modules {', '.join(self.modules)}.")

    def choose(self, skill: str = "", world: str = "", family: str = "") -> ServedModule:
        """The named module, or the module for a family; without a family, the only module."""
        if skill:
            return self.find(skill if "/" in skill or not world else f"{world}/{skill}")
        families = {name: router.families for name, router in sorted(self._routers.items())}
        worlds = [w for w, own in families.items() if not family or family in own or self._routers[w].fallback is not None]
        if world and world not in self._routers:
            raise not_found(str(unknown("world", world, self._routers)))
        if not worlds and not world:
            raise not_found(str(unknown("family", family, sorted(set().union(*families.values())))))
        if len(worlds) > 1 and not world:
            raise invalid(f"several worlds match; set world to one of {', '.join(worlds)}.")
        router = self._routers[world or worlds[0]]
        if not family:
            if len(router.families) > 1:
                raise invalid(f"set family to one of {', '.join(router.families)}.")
            (family,) = router.families
        try:
            module = router.choose(family)
        except TacitError as error:
            raise not_found(str(error)) from error
        return self.modules[module_name(router.world, module)]

    def find(self, name: str) -> ServedModule:
        """A module by its full name, or by its skill if that is unique."""
        matches = [served for served in self.modules.values() if name in (served.name, served.module.skill)]
        if len(matches) == 1:
            return matches[0]
        raise not_found(str(unknown("module", name, self.modules)))

    @contextmanager
    def use(self, served: ServedModule) -> Iterator[None]:
        """Keep a module's weights loaded, even if it is replaced or removed meanwhile."""
        served.users += 1
        try:
            yield
        finally:
            served.users -= 1
            if not served.users and served not in self.modules.values():
                asyncio.ensure_future(self._retire(served)).add_done_callback(lambda done: done.exception())

    def read_directories(self) -> tuple[dict[str, tuple[Module, Environment]], dict[str, str]]:
        """(usable modules, errors) by name; unreadable directories by path."""
        admitted: dict[str, tuple[Module, Environment]] = {}
        refused: dict[str, str] = {}
        for path in self._paths:
            try:
                directories = find_module_directories(find_modules_directory(path.expanduser()))
            except TacitError as error:
                # The directory cannot be read, so modules loaded from it earlier are kept.
                refused |= {name: str(error) for name, o in self.modules.items() if o.module.path.is_relative_to(path)}
                refused[str(path)] = str(error)
                continue
            for directory in directories:
                try:
                    self._admit(read_module(directory), admitted, refused)
                except Exception as error:  # a manifest may contain anything
                    current = [name for name, served in self.modules.items() if served.module.path == directory]
                    refused |= dict.fromkeys(current or [str(directory)], _describe_failure(error, directory))
        return admitted, refused

    def _admit(self, module: Module, admitted: dict[str, tuple[Module, Environment]], refused: dict[str, str]) -> None:
        world = open_world(module.world)
        name = module_name(world, module)
        json.dumps(describe_module(module, world), ensure_ascii=False, allow_nan=False).encode()  # must be sendable as JSON
        problems = find_problems(module, self._base)
        if not problems and (tracker := find_draft(make_context(module.context, world))) is not None:
            draft = tracker.draft
            if draft.world_name not in self._drafts:
                self._drafts[draft.world_name] = self._approve_draft(name, draft)
            if not self._drafts[draft.world_name]:
                problems.append(
                    f"module {module.path} contains a draft that was not approved to run. It was printed where this server was "
                    "started: read it, then start the server with --yes"
                )
        if name in admitted:
            problems.append(f"{admitted[name][0].path} and {module.path} are both modules of skill {name!r}")
        others = (*(served.module for served in self.modules.values()), *(other for other, _ in admitted.values()))
        loaded = next((other for other in others if other.adapter), None)
        if module.adapter and loaded is not None and loaded.fingerprint != module.fingerprint:
            problems.append(
                f"module {module.path} was trained on base {module.base.model!r} with fingerprint {module.fingerprint}, but "
                f"this server has loaded {loaded.base.model!r} with {loaded.fingerprint}; use a separate server"
            )
        if problems:
            refused[name] = "; ".join(problems)
        else:
            admitted[name] = module, world

    async def _retire(self, served: ServedModule) -> None:
        """Unload a removed or replaced module if no session or request uses it."""
        if served.users or served in self.modules.values():
            return
        served.close()

        def close() -> None:
            self._batching.pool.release(served.policy)
            self._models.close(served.policy)

        await self._batching.call(close)


def _describe_failure(error: Exception, directory: Path) -> str:
    return str(error) if isinstance(error, TacitError) else f"{directory} is invalid: {type(error).__name__}: {error}"
