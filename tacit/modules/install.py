"""Install modules from an archive or a directory, such as one that the hub's client downloaded, and verify them.

The source is not trusted. Everything is fetched into a temporary directory and checked there. Nothing is written to the
target directory before all checks passed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tacit.config.checks import open_world
from tacit.config.measuring import PanelEvaluation
from tacit.config.recipe import Overrides
from tacit.core.errors import TacitError
from tacit.core.world import FULL_BLOCK
from tacit.engines.models.tiny import hash_file
from tacit.evaluation.statistics import wilson
from tacit.modules.archive import CARD, check_names, check_size, unpack
from tacit.modules.drafting.sandbox import check_source
from tacit.modules.drafting.sandbox_process import PARTS
from tacit.modules.drafting.tracker import SandboxedDraft
from tacit.modules.export import ADAPTER, ADAPTER_CONFIG
from tacit.modules.module import MANIFEST, Module, find_modules, read_module
from tacit.modules.router import module_recipe, open_modules
from tacit.runs.files import write_directory

SCORE_FIELDS = ("panel", "panel_hash", "episodes", "successes", "success", "interval")  # of every score
BATCH = 256


@dataclass(frozen=True)
class Verdict:
    panel: str
    episodes: int
    claimed: int  # successes in its manifest
    measured: int  # successes here

    @property
    def holds(self) -> bool:
        """Whether the 95% intervals overlap. Counts are equal on the same hardware; elsewhere rounding changes some samples."""
        (low, high), (claimed_low, claimed_high) = (wilson(n, self.episodes) for n in (self.measured, self.claimed))
        return low <= claimed_high and claimed_low <= high

    def __str__(self) -> str:
        low, high = wilson(self.measured, self.episodes)
        here = f"{self.measured} of {self.episodes} won here on {self.panel} [{low:.1%}, {high:.1%}]"
        if self.measured == self.claimed:
            return f"{here}, as its manifest says"
        return f"{here}; its manifest says {self.claimed}: {'within chance' if self.holds else 'the score is not reproduced'}"


def verify_score(module: Module, base: str | None = None, overrides: Overrides | None = None) -> Verdict:
    stage = module.run["checkpoint"].rpartition("-")[0]
    score = module.scores.get(stage)
    if score is None:
        raise TacitError(f"module {module.skill!r} has no score of its own weights ({module.run['checkpoint']}) to verify.")
    target = open_modules(module.path, overrides or {}, base, None)
    with tempfile.TemporaryDirectory(prefix="tacit-verify-") as place:
        measured = PanelEvaluation(target, out=Path(place), fresh=True).play(BATCH).score
    if (measured.panel_hash, measured.episodes) != (score["panel_hash"], score["episodes"]):
        raise TacitError(
            f"module {module.skill!r} was measured on panel {score['panel']} (hash {score['panel_hash']}, {score['episodes']} "
            f"episodes), but here the panel is {measured.panel} (hash {measured.panel_hash}, {measured.episodes} episodes); "
            "they cannot be compared."
        )
    return Verdict(measured.panel, measured.episodes, score["successes"], measured.successes)


def find_problems(module: Module, base: str | None = None) -> list[str]:
    """All reasons why a module cannot be played on this machine; [] if it can. `base` overrides the base's path."""
    problems = module.find_damage()
    try:
        world = open_world(module.world)
    except TacitError as error:
        return [*problems, str(error)]
    return problems + module.find_mismatches(world, base)


def install(
    source: str,
    out: Path,
    *,
    max_bytes: int,
    sha256: str = "",
    base: str | None = None,
    overwrite: bool = False,
    verify: bool = False,
    engine: Overrides | None = None,
    approve_draft: Callable[[Module], bool] = lambda module: False,
) -> list[tuple[Module, bool, Verdict | None]]:
    """(module, whether it was new or changed, its verification) of each module in an archive or a directory.

    `sha256` is the expected hash of the archive. `base` is the path of the base model, if it is not where it was in training.
    `overwrite` replaces another module of the same skill. `verify` plays the module's panel again, with the settings `engine`.
    `approve_draft` shows the draft that a module contains and returns whether it may be run in its sandbox.
    """
    with tempfile.TemporaryDirectory(prefix="tacit-install-") as staging:
        try:
            staged = [read_module(path) for path in fetch(source, Path(staging), max_bytes, sha256)]
            for module in staged:
                _check_module(module, source, base, approve_draft)
        except (AttributeError, TypeError, KeyError, ValueError) as error:  # the manifest may contain anything anywhere
            raise TacitError(f"{MANIFEST} of {source} is invalid: {type(error).__name__}: {error}.") from error
        for module in staged:
            target = out / module.skill
            if target.exists() and not overwrite and not _is_same(module, target):
                what = "another module" if (target / MANIFEST).is_file() else "not a module"
                raise TacitError(f"{target} exists and is {what}; use --replace to overwrite it, or another --out.")
        verdicts = [verify_score(module, base, engine or {}) if verify else None for module in staged]
        for module, verdict in zip(staged, verdicts, strict=True):
            if verdict is not None and not verdict.holds:
                raise TacitError(f"module {module.skill!r} was not installed: {verdict}")
        installed = []
        for module, verdict in zip(staged, verdicts, strict=True):
            target = out / module.skill
            if changed := not _is_same(module, target):
                out.mkdir(parents=True, exist_ok=True)
                write_directory(target, partial(shutil.copytree, module.path, dirs_exist_ok=True))
            installed.append((replace(module, path=target), changed, verdict))
        return installed


def _is_same(module: Module, path: Path) -> bool:
    if not (path / MANIFEST).is_file():
        return False
    there = read_module(path)
    return there.to_json() == module.to_json() and not there.find_damage()


def _check_module(module: Module, source: str, base: str | None, approve_draft: Callable[[Module], bool]) -> None:
    check_names(module)
    there = {file.name for file in module.path.iterdir()}
    if unlisted := sorted(there - {MANIFEST, CARD, *module.files}):
        raise TacitError(f"{source} contains {', '.join(unlisted[:5])}, which its {MANIFEST} does not list.")
    needed = {ADAPTER, ADAPTER_CONFIG} if module.adapter else {"config.json"}
    if missing := sorted(needed - set(module.files)):
        raise TacitError(f"module {module.skill!r} does not list {', '.join(missing)}, which every module needs.")
    for stage, score in module.scores.items():
        if not isinstance(score, Mapping) or not all(name in score for name in SCORE_FIELDS):
            raise TacitError(f"module {module.skill!r} has a score after {stage!r} without {', '.join(SCORE_FIELDS)}.")
    draft = module.draft
    if draft is not None:
        if draft.kind not in PARTS or draft.world_name != module.world or set(draft.files) - set(module.files):
            raise TacitError(f"the draft in module {module.skill!r} is not the one it was trained with.")
        if reasons := check_source(draft.text):
            raise TacitError(f"the draft in module {module.skill!r} is refused: {'; '.join(reasons)}.")
    if problems := find_problems(module, base):
        raise TacitError(f"module {module.skill!r} was not installed: {'; '.join(problems).replace(str(module.path), source)}")
    world = open_world(module.world)
    if not module.families or (world.playable and not set(module.families) <= set(world.families)):
        raise TacitError(
            f"module {module.skill!r} is for families {list(module.families)}; {module.display_world!r} has {world.families}."
        )
    module_recipe(module.path, {module.skill: module}, {})  # its settings must be readable
    if draft is None:
        return
    if not approve_draft(module):  # then load the draft once in its sandbox
        raise TacitError(
            f"module {module.skill!r} contains a draft ({', '.join(draft.files)}) that was not approved to run; nothing "
            "was installed. Read it, then pass --yes."
        )
    tracker = open_world(module.world).tracker_of(module.context.get("form", FULL_BLOCK))
    assert isinstance(tracker, SandboxedDraft), "the module's world is the draft's"
    try:
        assert tracker.rules.claims
    finally:
        tracker.close()


def fetch(source: str, staging: Path, max_bytes: int, sha256: str = "") -> list[Path]:
    """Unpack an archive, or copy a directory of one module or several. Return one directory under `staging` per module, with
    contents not yet checked."""
    path = Path(source).expanduser()
    if path.is_file():
        if sha256 and (actual := hash_file(path)) != sha256.lower():
            raise TacitError(f"{path.name} has sha256 {actual}, not {sha256}.")
        out = staging / "unpacked"
        out.mkdir()
        unpack(path, out, max_bytes)
        return [out]
    if not path.is_dir():
        raise TacitError(f"no archive or directory {source!r}; `tacit modules pull OWNER/NAME` takes a module from the hub.")
    if sha256:
        raise TacitError(f"--sha256 is for one file; {source} is not a file.")
    copies = []
    for module in find_modules(path).values():
        check_names(module)
        out = staging / module.skill
        out.mkdir()
        size = 0
        for name in [MANIFEST, *module.files, *([CARD] if (module.path / CARD).is_file() else [])]:
            file = module.path / name
            # No link, or one of the hub's cache: SNAPSHOTS/COMMIT/NAME -> BLOBS/HASH.
            blobs = path.resolve().parents[1] / "blobs" if path.parent.name == "snapshots" else None
            if not file.is_file() or (file.is_symlink() and file.resolve().parent != blobs):
                raise TacitError(f"{file} is a link or is missing; a module consists of regular files.")
            check_size(size := size + file.stat().st_size, max_bytes, module.path)
            shutil.copyfile(file, out / name)
        copies.append(out)
    return copies
