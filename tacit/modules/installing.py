"""A module of somebody else's, put among one's own: only whole, only what it says it is, only where it can be played."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.assembly.checks import open_world
from tacit.assembly.recipe import Said
from tacit.core.errors import TacitError
from tacit.modules.checking import problems
from tacit.modules.export import ADAPTER, ADAPTER_CONFIG
from tacit.modules.fetching import fetch
from tacit.modules.module import MANIFEST, Module, read_module
from tacit.modules.packing import TOLD, check_names
from tacit.modules.players import module_recipe
from tacit.modules.remeasuring import Verdict, remeasure
from tacit.runs.files import write_directory

CODE = re.compile(r"[^\s:]+:[A-Za-z_]\w*")
"""`package.module:NAME`, `path/to/file.py:NAME`"""


@dataclass(frozen=True)
class Wishes:
    """How a module is to be installed."""

    most_bytes: int
    sha256: str = ""
    """what a package must be"""
    base: str | None = None
    """where the base lies, if not where it was in training"""
    replace: bool = False
    """in the place of another of the same skill"""
    trust_code: bool = False
    """worlds and methods that are somebody's own code"""
    verify: bool = False
    """play its panel again"""
    engine: Said | None = None
    """what is said about the device that plays it"""


@dataclass(frozen=True)
class Installed:
    module: Module
    changed: bool
    """False where the same one was there already"""
    verdict: Verdict | None = None


def install(source: str, out: Path, wishes: Wishes) -> list[Installed]:
    """Nothing is written to `out` before everything has been checked."""
    with tempfile.TemporaryDirectory(prefix="tacit-install-") as staging:
        try:
            staged = [read_module(place) for place in fetch(source, Path(staging), wishes.most_bytes, wishes.sha256)]
            for module in staged:
                _check(module, source, wishes)
        except (AttributeError, TypeError, KeyError, ValueError) as error:  # a manifest may hold anything anywhere
            raise TacitError(f"{MANIFEST} of {source} makes no sense: {type(error).__name__}: {error}.") from error
        for module in staged:
            _check_place(module, out / module.skill, wishes.replace)
        verdicts = [_verified(module, wishes) if wishes.verify else None for module in staged]
        return [_put(module, out, verdict) for module, verdict in zip(staged, verdicts, strict=True)]


def _check(module: Module, source: str, wishes: Wishes) -> None:
    check_names(module)
    _check_whole(module)
    code = dict.fromkeys(_code_of_others([module.world, module.base.model, module.context, module.run]))
    if code and not wishes.trust_code:
        raise TacitError(
            f"module {module.skill!r} of {source} names code of its maker's ({', '.join(code)}), which would be run here. If "
            "you have that code and trust it, say --trust-code."
        )
    if found := problems(module, wishes.base):
        told = "; ".join(found).replace(str(module.path), source)
        raise TacitError(f"module {module.skill!r} is not installed: {told}")
    known = open_world(module.world).families
    if not module.families or not set(module.families) <= set(known):
        raise TacitError(
            f"module {module.skill!r} is for {list(module.families)}; the families of {module.world!r} are {known}."
        )
    module_recipe(module.path, {module.skill: module}, {})  # its settings, by which it plays


def _check_whole(module: Module) -> None:
    """That it has weights, and scores that can be read, whatever else its manifest says."""
    needed = {ADAPTER, ADAPTER_CONFIG} if module.adapter else {"config.json"}
    if missing := sorted(needed - set(module.files)):
        raise TacitError(f"module {module.skill!r} does not list {', '.join(missing)}, without which it is none.")
    for stage, score in module.scores.items():
        if not isinstance(score, Mapping) or not all(name in score for name in TOLD):
            raise TacitError(f"module {module.skill!r} has a score after {stage!r} without {', '.join(TOLD)}.")


def _code_of_others(value: Any) -> list[str]:
    """Worlds, methods and whatever else by the name of a file or a package, which is imported when it is named."""
    if isinstance(value, Mapping):
        return [name for inner in value.values() for name in _code_of_others(inner)]
    if isinstance(value, list | tuple):
        return [name for inner in value for name in _code_of_others(inner)]
    return [value] if isinstance(value, str) and CODE.fullmatch(value) else []


def _check_place(module: Module, place: Path, over: bool) -> None:
    if not place.exists() or over or _is_same(module, place):
        return
    what = "another module" if (place / MANIFEST).is_file() else "something that is no module"
    raise TacitError(f"{place} is {what}; --replace puts this one in its place, --out DIR beside it.")


def _is_same(module: Module, place: Path) -> bool:
    if not (place / MANIFEST).is_file():
        return False
    there = read_module(place)
    return there.to_json() == module.to_json() and not there.damage()


def _verified(module: Module, wishes: Wishes) -> Verdict:
    verdict = remeasure(module, wishes.base, wishes.engine or {})
    if not verdict.holds:
        raise TacitError(f"module {module.skill!r} is not installed: {verdict}")
    return verdict


def _put(module: Module, out: Path, verdict: Verdict | None) -> Installed:
    place = out / module.skill
    installed = replace(module, path=place)
    if _is_same(module, place):
        return Installed(installed, False, verdict)
    out.mkdir(parents=True, exist_ok=True)

    def fill(directory: Path) -> None:
        shutil.copytree(module.path, directory, dirs_exist_ok=True)

    write_directory(place, fill)
    return Installed(installed, True, verdict)
