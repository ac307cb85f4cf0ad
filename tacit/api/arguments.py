"""Keyword arguments as settings: `kl=0.0`, `groups=16`, `sft={"steps": 200}`, `engine={"device": "cpu"}`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tacit.config.checks import find_differing
from tacit.config.flags import method_options, methods_with, section_options, train_options
from tacit.config.recipe import METHOD_TABLES
from tacit.config.values import NAMES_ELSEWHERE, to_data
from tacit.core.errors import TacitError
from tacit.core.registry import IN_MEMORY, Registry
from tacit.core.trust import trust_names
from tacit.core.world import Environment
from tacit.methods import REGISTRY as METHODS
from tacit.methods.combine import CombinedMethod
from tacit.worlds import REGISTRY as WORLDS

SECTIONS = (*METHOD_TABLES, *section_options())
NAMED = ("world", "method", "model", "out", "config", "resume", "callbacks", "quiet")  # arguments of `tacit.train` itself
WHOLE = ("worlds", "policies")  # tables of named tables


def parse_settings(settings: Mapping[str, Any], method: str) -> dict[tuple[str, ...], Any]:
    """Settings by path in the document. Unknown keywords raise."""
    trust_names(settings)
    options = (*method_options(method), *train_options())
    places = {option.place[-1]: option.place for option in options if len(option.place) < 3}
    inner = {option.place[1] for option in options if len(option.place) == 3}
    overrides: dict[tuple[str, ...], Any] = {}
    for key, value in settings.items():
        if key in WHOLE:
            overrides[key,] = _table(key, value)
        elif key == "engine" and isinstance(value, str):
            overrides["engine", "name"] = value
        elif key in SECTIONS:
            overrides.update({(key, name): setting for name, setting in _table(key, value).items()})
        elif key in inner:
            overrides.update({("method", key, name): setting for name, setting in _table(key, value).items()})
        elif key in places:
            overrides[places[key]] = value
        else:
            raise _unknown(key, value, method, [*places, *inner, *SECTIONS, *WHOLE, *NAMED])
    return overrides


def _table(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TacitError(f"{key} = {value!r} must be a dict of settings, such as {key}={{…}}.")
    return value


def _unknown(key: str, value: Any, method: str, known: list[str]) -> TacitError:
    owners = methods_with(f"--{key.replace('_', '-')}")
    near = (
        [NAMES_ELSEWHERE[key]] if NAMES_ELSEWHERE.get(key) in known else difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    )
    options = [option for options in section_options().values() for option in options]
    inside = [o.place for o in options if key in (o.place[-1], "_".join(o.place))]
    if owners:
        hint = f"It belongs to {', '.join(owners)}: method={owners[0]!r}."
    elif inside:
        hint = f'Did you mean {inside[0][0]}={{"{inside[0][-1]}": {value!r}}}?'
    else:
        hint = f"Did you mean {near[0]!r}?" if near else "`tacit train --help all` lists the settings."
    return TacitError(f"unknown setting {key!r} of a run with method {method!r}. {hint}")


# Names for objects. Saved settings hold names, so a world or method passed as an object gets a name that finds it again:
#
#     built in, or of an installed package       alfworld
#     in a module of a package                   my_package.world:GUESS
#     in a file, e.g. the running script         /home/me/guess.py:GUESS
#     elsewhere (a notebook, a function)         <python>:guess     only a program that has the object can open the run
#
# In this process the name refers to the object itself.

World = str | Environment
Worlds = World | Sequence[World | tuple[World, float]] | Mapping[str, float]  # one world, several, or several with shares
Method = str | type[Any] | Any  # a name, a settings class, or an instance of one


def name_worlds(worlds: Worlds) -> str:
    """`alfworld`, or `alfworld=0.75,countdown=0.25`."""
    if isinstance(worlds, str | Environment):
        return _name_world(worlds)
    if isinstance(worlds, Mapping):
        worlds = list(worlds.items())
    if isinstance(worlds, Sequence):
        shared = [part if isinstance(part, tuple) else (part, None) for part in worlds]
        return ",".join(_name_world(world) + ("" if share is None else f"={to_data(share)!r}") for world, share in shared)
    if hasattr(worlds, "reset") and hasattr(worlds, "step"):
        make = getattr(worlds, "__name__", type(worlds).__name__)
        raise TacitError(
            f"world = {worlds!r} is the simulator of one episode; pass an Environment with make={make}, its tasks and its "
            "wording (docs/tutorials/own_world.md)."
        )
    raise TacitError(f"world = {worlds!r} must be a name, an Environment, several of them, or several with their shares.")


def name_method(method: Method | Sequence[Method]) -> tuple[str, dict[str, Any]]:
    """(name, settings that differ from the defaults). A name or a class has no such settings."""
    if isinstance(method, str):
        trust_names(method)
        return method, {}
    if isinstance(method, Sequence):
        named = [name_method(part) for part in method]
        return "+".join(name for name, _ in named), {key: value for _, own in named for key, value in own.items()}
    cls = method if isinstance(method, type) else type(method)
    METHODS.check(cls)
    own = {} if method is cls else find_differing(to_data(method), to_data(cls()))
    if issubclass(cls, CombinedMethod):
        return "+".join(cls.member_classes), own
    return _name_object(METHODS, cls, cls.__name__), own


def _name_world(world: World) -> str:
    if isinstance(world, str):
        trust_names(world)
        return world
    return _name_object(WORLDS, world, getattr(world, "name", ""))


def _name_object(registry: Registry, value: Any, plain: str) -> str:
    own = getattr(value, "name", plain)
    if own in registry.names and registry.get(own) is value:
        return own
    name = next(_places(value), None) or f"{IN_MEMORY}:{plain}"
    registry.register(name, value)
    trust_names(name)  # child processes import it
    return name


def _places(target: Any) -> Iterator[str]:
    """Where the object can be imported from: its own module, then others, the running script last."""
    home = target.__module__ if isinstance(target, type) else getattr(getattr(target, "make", None), "__module__", "")
    others = sorted(sys.modules.copy().items(), key=lambda item: item[0] == "__main__")
    for module in (sys.modules.get(home), *(module for _, module in others)):
        if not isinstance(module, ModuleType) or module.__name__.startswith("tacit.api"):
            continue
        for attribute, value in list(vars(module).items()):
            if value is target and (place := _place_of(module)):
                yield f"{place}:{attribute}"


def _place_of(module: ModuleType) -> str:
    """`package.module`, or the absolute file of a module outside a package."""
    if module.__name__ != "__main__" and module.__package__:
        return module.__name__
    file = getattr(module, "__file__", None)
    return str(Path(file).resolve()) if file and file.endswith(".py") else ""
