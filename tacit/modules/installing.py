"""A module of somebody else's, put among one's own: only whole, only what it says it is, only where it can be played."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.assembly.checks import open_world
from tacit.assembly.recipe import Said
from tacit.core.errors import TacitError
from tacit.core.world import FULL_BLOCK
from tacit.modules.carrying import PREFIX
from tacit.modules.checking import problems
from tacit.modules.drafting.cell import PARTS
from tacit.modules.drafting.fence import read_only
from tacit.modules.drafting.tracker import FencedDraft
from tacit.modules.export import ADAPTER, ADAPTER_CONFIG
from tacit.modules.fetching import fetch
from tacit.modules.module import MANIFEST, Module, read_module
from tacit.modules.packing import TOLD, check_names
from tacit.modules.players import module_recipe
from tacit.modules.remeasuring import Verdict, remeasure
from tacit.modules.work import NAME as WORK_NAME
from tacit.runs.files import write_directory

OURS = (PREFIX, WORK_NAME)
"""worlds without a name of their own that come with tacit"""


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
    agreed: Callable[[Module], bool] = lambda module: False
    """shows the draft that a module brings along; whether it may be run here, behind its fence"""


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
    _check_draft(module)
    drafted_for = module.draft.world if module.draft else ""
    code = dict.fromkeys(_code_of_others([module.world, drafted_for, module.base.model, module.context, module.run]))
    if code and not wishes.trust_code:
        raise TacitError(
            f"module {module.skill!r} of {source} names code of its maker's ({', '.join(code)}), which would be run here. If "
            "you have that code and trust it, say --trust-code."
        )
    if found := problems(module, wishes.base):
        told = "; ".join(found).replace(str(module.path), source)
        raise TacitError(f"module {module.skill!r} is not installed: {told}")
    world = open_world(module.world)
    if not module.families or (world.playable and not set(module.families) <= set(world.families)):
        raise TacitError(
            f"module {module.skill!r} is for {list(module.families)}; the families of {module.place!r} are {world.families}."
        )
    module_recipe(module.path, {module.skill: module}, {})  # its settings, by which it plays
    _try_draft(module, wishes)


def _check_draft(module: Module) -> None:
    """That its draft is among its files, is what its world names, and has nothing in its text that a draft may not have."""
    draft = module.draft
    if draft is None:
        return
    if draft.kind not in PARTS or draft.world_name != module.world or set(draft.files) - set(module.files):
        raise TacitError(f"module {module.skill!r} brings a draft along that is not the one it was trained with.")
    if found := [reason for text in draft.texts for reason in read_only(text)]:
        raise TacitError(f"the draft in module {module.skill!r} is refused: {'; '.join(found)}.")


def _try_draft(module: Module, wishes: Wishes) -> None:
    """Shown first; then it must open behind its fence."""
    if module.draft is None:
        return
    if not wishes.agreed(module):
        raise TacitError(
            f"module {module.skill!r} brings a draft along ({', '.join(module.draft.files)}), and nobody agreed that it be "
            "run; nothing was installed. Read it, and say --yes."
        )
    tracker = open_world(module.world).tracker_of(module.context.get("form", FULL_BLOCK))
    assert isinstance(tracker, FencedDraft), "its world is the draft's"
    try:
        assert tracker.terms.claims
    finally:
        tracker.close()


def _check_whole(module: Module) -> None:
    """That it has weights, and scores that can be read, whatever else its manifest says."""
    needed = {ADAPTER, ADAPTER_CONFIG} if module.adapter else {"config.json"}
    if missing := sorted(needed - set(module.files)):
        raise TacitError(f"module {module.skill!r} does not list {', '.join(missing)}, without which it is none.")
    for stage, score in module.scores.items():
        if not isinstance(score, Mapping) or not all(name in score for name in TOLD):
            raise TacitError(f"module {module.skill!r} has a score after {stage!r} without {', '.join(TOLD)}.")


def _code_of_others(value: Any) -> list[str]:
    """Worlds, methods and whatever else by the name of a file or a package, which is imported when it is named: whatever has a
    colon is taken for `package.module:NAME` or `path/to/file.py:NAME`, since naming imports before it looks further."""
    if isinstance(value, Mapping):
        return [name for inner in value.values() for name in _code_of_others(inner)]
    if isinstance(value, list | tuple):
        return [name for inner in value for name in _code_of_others(inner)]
    return [value] if isinstance(value, str) and ":" in value and not value.startswith(OURS) else []


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
