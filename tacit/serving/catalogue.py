"""What is offered: modules by name, each family by its module, added and replaced while sessions go on.

A session keeps the weights it began with until it is over, whatever happens to the directory they came from.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.config.checks import open_world
from tacit.core.errors import TacitError, unknown
from tacit.core.method import Context
from tacit.core.world import Environment
from tacit.engines.local.settings import EngineSettings
from tacit.modules.carrying import PackagedDraft, package_draft
from tacit.modules.drafting.tracker import SandboxedDraft
from tacit.modules.module import Module, find_module_directories, make_context, read_module
from tacit.modules.router import Router, adapter_shape, find_modules_directory
from tacit.modules.verify import find_problems
from tacit.serving.batching import Aside, Gathering, aside
from tacit.serving.requests import not_found, unusable

if TYPE_CHECKING:
    from tacit.engines.local.policy import LocalPolicy

# A module that is offered: its weights in memory, its context, and the draft it may bring along.


class Offer:
    """A module with its weights in memory."""

    def __init__(self, name: str, module: Module, world: Environment, context: Context, policy: LocalPolicy) -> None:
        self.name, self.module, self.world, self.context, self.policy = name, module, world, context, policy
        self.users = 0
        """sessions and requests under way"""
        self.draft = draft_of(context)
        """the tracker, where it was drafted"""
        self.aside = Aside() if self.draft is not None else None
        """where a draft is asked: behind its fence it may take seconds"""

    def close(self) -> None:
        if self.aside is not None and self.draft is not None:
            self.aside.close(self.draft.close)

    def to_json(self) -> dict[str, Any]:
        return described(self.module, self.world)


def draft_of(context: Context) -> SandboxedDraft | None:
    return context.tracker if isinstance(context.tracker, SandboxedDraft) else None


def name_of(world: Environment, module: Module) -> str:
    return f"{world.name}/{module.skill}"


def described(module: Module, world: Environment) -> dict[str, Any]:
    return {
        "name": name_of(world, module),
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


# The weights in memory: one base with all adapters of a shape on it at once, and modules that are whole models beside it.
#
# Everything here is for the thread that touches the model.


class Bodies:
    def __init__(self, engine: EngineSettings, base: str | None) -> None:
        """`base` is where the base lies on this machine, if not where it was in training."""
        self._engine, self._base = replace(engine, value_head=False), base
        self._loaded: dict[Hashable, LocalPolicy] = {}
        self._made = 0

    def open(self, module: Module, world: Environment) -> LocalPolicy:
        """The policy that plays this module, and no other. Its files are checked as they are read."""
        module.check_files()
        shape = adapter_shape(module)
        if shape is None:
            return self._load(("model", self._next()), str(module.path), replace(self._engine, lora_rank=0))
        rank, alpha, targets = shape
        settings = replace(self._engine, lora_rank=rank, lora_alpha=alpha, lora_targets=targets)
        body = self._load((module.fingerprint, shape), module.base.with_model(self._base).source(world), settings)
        view = body.adapter(f"module-{self._next()}")
        try:
            view.load_adapter(module.path)
        except BaseException:
            body.engine.remove_adapter(view.name)  # refused at every refresh, it would stay in memory each time
            raise
        return view

    def bare(self) -> LocalPolicy | None:
        """The base without any module; None where all modules are whole models."""
        adapted = (body for body in self._loaded.values() if body.engine.adapters is not None)
        return next(adapted, None)

    def close(self, policy: LocalPolicy) -> None:
        """Give up a module's weights; the base stays."""
        if policy.engine.adapters is not None:
            policy.engine.remove_adapter(policy.name)
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


Agreed = Callable[[str, PackagedDraft], bool]


@dataclass(frozen=True)
class Changes:
    """What a look at the directories has changed. What was refused is served as before, where it was there before."""

    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """name or path -> why"""


class Catalogue:
    def __init__(
        self,
        places: Sequence[Path],
        gathering: Gathering,
        engine: EngineSettings | None = None,
        base: str | None = None,
        fallback: str | None = None,
        agreed: Agreed = lambda name, draft: False,
    ) -> None:
        """`agreed` shows a draft that a module brings along, and says whether it may be run. It is asked once of each."""
        self._places, self._gathering = list(places), gathering
        self._agreed, self._drafts = agreed, dict[str, bool]()
        self._engine, self._base, self._fallback = engine or EngineSettings(), base, fallback
        self._bodies = Bodies(self._engine, base)
        self._looking = asyncio.Lock()
        self.offers: dict[str, Offer] = {}
        self.bare: LocalPolicy | None = None
        """the base without a module"""
        self._routers: dict[str, Router] = {}

    async def refresh(self) -> Changes:
        """Look at the directories again: new modules are added, changed ones replaced, missing ones taken off."""
        async with self._looking:
            found, refused = await aside(self._read)
            changes = Changes(refused=refused)
            offers = {name: offer for name, offer in self.offers.items() if name in refused}
            for name, (module, world) in found.items():
                here = self.offers.get(name)
                if here is not None and here.module == module:
                    offers[name] = here
                    continue
                try:
                    offers[name] = await self._open(name, module, world)
                except Exception as error:
                    changes.refused[name] = _why(error, module.path)
                    if here is not None:
                        offers[name] = here
                    continue
                (changes.added if here is None else changes.replaced).append(name)
            changes.removed.extend(name for name in self.offers if name not in offers)
            self._routers = self._route(offers)
            before, self.offers = self.offers, offers
            self.bare = await self._gathering.call(self._bodies.bare)
            for offer in before.values():
                await self._retire(offer)
            return changes

    def close(self) -> None:
        for offer in self.offers.values():
            offer.close()

    def check_fallback(self) -> None:
        if self._fallback is not None and not any(router.fallback for router in self._routers.values()):
            raise TacitError(f"fallback {self._fallback!r} is no module here; there are {', '.join(self.offers)}.")

    def choose(self, skill: str = "", world: str = "", family: str = "") -> Offer:
        """The module that was named, or the one for a family; without a family, the only one there is."""
        if skill:
            return self.named(skill if "/" in skill or not world else f"{world}/{skill}")
        worlds = sorted(name for name, router in self._routers.items() if not family or self._serves(router, family))
        if world and world not in self._routers:
            raise not_found(str(unknown("world", world, self._routers)))
        if not worlds and not world:
            families = sorted({family for offer in self.offers.values() for family in offer.module.families})
            raise not_found(str(unknown("family", family, families)))
        if len(worlds) > 1 and not world:
            raise unusable(f"which world is it of? Say world, one of {', '.join(worlds)}.")
        router = self._routers[world or worlds[0]]
        if not family:
            families = sorted({family for module in router.modules.values() for family in module.families})
            if len(families) > 1:
                raise unusable(f"which kind of task is it? Say family, one of {', '.join(families)}.")
            family = families[0]
        try:
            module = router.choose(family)
        except TacitError as error:
            raise not_found(str(error)) from error
        return self.offers[name_of(router.world, module)]

    def named(self, name: str) -> Offer:
        """By its whole name, or by its skill where only one world has it."""
        found = [offer for offer in self.offers.values() if name in (offer.name, offer.module.skill)]
        if len(found) == 1:
            return found[0]
        raise not_found(str(unknown("module", name, self.offers)))

    @contextmanager
    def using(self, offer: Offer) -> Iterator[Offer]:
        offer.users += 1
        try:
            yield offer
        finally:
            offer.users -= 1
            self._may_retire(offer)

    def hold(self, offer: Offer) -> Callable[[], None]:
        """As `using`, for as long as a session lasts: call what is returned, once."""
        holding = self.using(offer)
        holding.__enter__()

        def let_go() -> None:
            holding.__exit__(None, None, None)

        return let_go

    def _read(self) -> tuple[dict[str, tuple[Module, Environment]], dict[str, str]]:
        """(what can be served, what cannot and why), by name; directories that cannot be read by their path."""
        found: dict[str, tuple[Module, Environment]] = {}
        refused: dict[str, str] = {}
        for place in self._places:
            try:
                directories = find_module_directories(find_modules_directory(place.expanduser()))
            except TacitError as error:
                # Which modules it had is not known any more: all that came from there stay as they are.
                refused |= {name: str(error) for name, o in self.offers.items() if o.module.path.is_relative_to(place)}
                refused[str(place)] = str(error)
                continue
            for directory in directories:
                try:
                    self._admit(read_module(directory), found, refused)
                except Exception as error:  # a manifest may hold anything anywhere
                    here = [name for name, offer in self.offers.items() if offer.module.path == directory]
                    refused |= dict.fromkeys(here or [str(directory)], _why(error, directory))
        return found, refused

    def _admit(self, module: Module, found: dict[str, tuple[Module, Environment]], refused: dict[str, str]) -> None:
        world = open_world(module.world)
        name = name_of(world, module)
        json.dumps(described(module, world), ensure_ascii=False, allow_nan=False).encode()  # or nobody could be told of it
        wrong = find_problems(module, self._base)
        if not wrong and not self._may_run(name, draft_of(make_context(module.context, world))):
            wrong.append(
                f"module {module.path} brings a draft along, and nobody agreed that it be run. It was shown where this server "
                "was started: read it, and start it with --yes"
            )
        if name in found:
            wrong.append(f"{found[name][0].path} and {module.path} are both modules of skill {name!r}")
        held = next((offer.module for offer in self.offers.values() if offer.module.adapter), None) or next(
            (other for other, _ in found.values() if other.adapter), None
        )
        if module.adapter and held is not None and held.fingerprint != module.fingerprint:
            wrong.append(
                f"module {module.path} was trained on base {module.base.model!r} with fingerprint {module.fingerprint}, and "
                f"this server holds {held.base.model!r} with {held.fingerprint}; serve it by a server of its own"
            )
        if wrong:
            refused[name] = "; ".join(wrong)
        else:
            found[name] = module, world

    def _may_run(self, name: str, draft: SandboxedDraft | None) -> bool:
        if draft is None:
            return True
        carried = package_draft(draft)
        if carried.attribute_name not in self._drafts:
            self._drafts[carried.attribute_name] = self._agreed(name, carried)
        return self._drafts[carried.attribute_name]

    async def _open(self, name: str, module: Module, world: Environment) -> Offer:
        policy = await self._gathering.call(lambda: self._bodies.open(module, world))
        return Offer(name, module, world, make_context(module.context, world), policy)

    def _route(self, offers: Mapping[str, Offer]) -> dict[str, Router]:
        routers = {}
        for world in {offer.world.name: offer.world for offer in offers.values()}.values():
            modules = {o.module.skill: o.module for o in offers.values() if o.world.name == world.name}
            fallback = self._fallback if self._fallback in modules else None
            routers[world.name] = Router(modules, world, self._engine, self._base, fallback)
        return routers

    @staticmethod
    def _serves(router: Router, family: str) -> bool:
        return router.fallback is not None or any(family in module.families for module in router.modules.values())

    def _may_retire(self, offer: Offer) -> None:
        if not offer.users and offer not in self.offers.values():
            task = asyncio.ensure_future(self._retire(offer))
            task.add_done_callback(lambda done: done.exception())

    async def _retire(self, offer: Offer) -> None:
        """Give up the weights of a module that is offered no more and that nobody uses."""
        if offer.users or offer in self.offers.values():
            return

        offer.close()

        def close() -> None:
            self._gathering.forget(offer.policy)
            self._bodies.close(offer.policy)

        await self._gathering.call(close)


def _why(error: Exception, directory: Path) -> str:
    return str(error) if isinstance(error, TacitError) else f"{directory} makes no sense: {type(error).__name__}: {error}"
