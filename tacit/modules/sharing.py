"""Share modules, and install what others share.

A module is shared as one file (an uncompressed zip of its directory and a card), or on the Hugging Face hub (one repository per
module, with its card as the model card; `huggingface_hub` reads HF_TOKEN and HF_ENDPOINT and caches files). module.json lists
every other file with its hash, so the archive needs no list of its own. Packing the same module twice gives the same bytes.

The source of an installation, an archive or a directory, is not trusted. Everything is fetched into a temporary directory and
checked there. Nothing is written to the target directory before all checks passed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tacit.config.checks import open_world
from tacit.config.measuring import PanelEvaluation
from tacit.config.recipe import Overrides
from tacit.core.errors import TacitError, first_line
from tacit.core.world import FULL_BLOCK
from tacit.engines.models.tiny import hash_file
from tacit.evaluation.statistics import wilson
from tacit.modules.agent import module_recipe, open_modules
from tacit.modules.drafting.sandbox import check_source
from tacit.modules.drafting.sandbox_process import PARTS
from tacit.modules.drafting.tracker import SandboxedDraft
from tacit.modules.export import ADAPTER, ADAPTER_CONFIG, render_card
from tacit.modules.module import MANIFEST, Module, find_license, find_modules, read_module
from tacit.runs.files import explain_disk_errors, write_directory

CARD = "README.md"
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")  # names of files and skills: a single path component, not hidden
SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja", ".md")  # tensors and text; nothing that runs when it is read
EPOCH = (1980, 1, 1, 0, 0, 0)


def prepare_to_share(module: Module, base_license: str = "") -> str:
    """Check that a module may be shared (files intact, license known). Return its card."""
    module.check_files()
    check_names(module)
    return render_card(module, find_license(module.base, open_world(module.world), base_license))


def pack(module: Module, file: Path, base_license: str = "") -> str:
    """Write the archive atomically. Return its sha256."""
    card = prepare_to_share(module, base_license)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with explain_disk_errors(file):
        try:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
                for name in (CARD, MANIFEST, *sorted(module.files)):
                    entry = zipfile.ZipInfo(name, EPOCH)
                    entry.external_attr = (stat.S_IFREG | 0o644) << 16
                    if name == CARD:
                        archive.writestr(entry, card)
                        continue
                    with (module.path / name).open("rb") as source, archive.open(entry, "w", force_zip64=True) as target:
                        shutil.copyfileobj(source, target)
            os.replace(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)
    return hash_file(file)


def unpack(file: Path, out: Path, max_bytes: int) -> None:
    """Extract an archive into `out`. `extractall` writes no links and no more bytes than an entry declares; hashes are checked
    with the module."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            check_size(sum(entry.file_size for entry in archive.infolist()), max_bytes, file)
            for name in names:
                check_name(name, file)
            if len(set(names)) < len(names) or MANIFEST not in names:
                raise TacitError(f"{file} is not a module archive: it has no {MANIFEST}, or contains a file twice.")
            archive.extractall(out)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise TacitError(f"{file} is not a module archive, or is damaged: {error}.") from error


def check_name(name: str, where: object) -> None:
    if not SAFE_NAME.fullmatch(name):
        raise TacitError(f"{where} contains a file with the unsafe name {name!r}; names must not contain a path.")
    if not name.endswith(SUFFIXES):
        raise TacitError(f"{where} contains {name!r}; a module may only contain tensors and text ({', '.join(SUFFIXES)}).")


def check_names(module: Module) -> None:
    """Check the module's skill and file names, since the manifest is untrusted."""
    for name in module.files:
        check_name(name, f"module {module.skill!r}")
    if not SAFE_NAME.fullmatch(module.skill):
        raise TacitError(f"the module's skill {module.skill!r} cannot be used as a directory name.")


def check_size(size: int, max_bytes: int, source: object) -> None:
    if size > max_bytes:
        raise TacitError(f"{source} has {size:,} bytes, more than the limit of {max_bytes:,}; raise it with --max-mb.")


def push(module: Module, repository: str, base_license: str = "", private: bool = False) -> str:
    """Upload a module as the whole content of a repository, which is created if needed. Return the commit."""
    from huggingface_hub import HfApi

    card, hub = prepare_to_share(module, base_license), HfApi()
    with tempfile.TemporaryDirectory(prefix="tacit-push-") as staging, _explain_errors("push to", repository):
        for name in (MANIFEST, *module.files):
            shutil.copyfile(module.path / name, Path(staging) / name)
        (Path(staging) / CARD).write_text(card, encoding="utf-8")
        hub.create_repo(repository, private=private or None, exist_ok=True)
        message = f"Skill module {module.skill} ({module.digest[:12]})"
        uploaded = hub.upload_folder(repo_id=repository, folder_path=staging, commit_message=message, delete_patterns=["*"])
    return uploaded.oid


def pull(repository: str, revision: str, max_bytes: int) -> tuple[Path, str]:
    """Download a repository at one commit. Return its directory in the cache, and the commit. Without a connection (or with
    HF_HUB_OFFLINE=1) it must be in the cache already."""
    from httpx import TransportError
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import OfflineModeIsEnabled

    patterns, commit = [f"*{suffix}" for suffix in SUFFIXES], ""
    with _explain_errors("pull from", repository):
        try:
            info = HfApi().model_info(repository, revision=revision or None, files_metadata=True)
            check_size(sum(file.size or 0 for file in info.siblings or ()), max_bytes, repository)
            commit = info.sha or ""
        except (TransportError, OfflineModeIsEnabled):
            pass
        # Ask for the given revision, not the commit, so that the cache finds it again without a connection.
        path = Path(
            snapshot_download(repository, revision=revision or None, allow_patterns=patterns, local_files_only=not commit)
        )
    if commit and path.name != commit:
        raise TacitError(f"{repository} changed during the download, from commit {commit} to {path.name}; try again.")
    return path, path.name


@contextmanager
def _explain_errors(action: str, repository: str) -> Iterator[None]:
    from httpx import HTTPError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        yield
    except (HTTPError, OSError, ValueError) as error:
        raise TacitError(f"cannot {action} the hub's {repository}: {first_line(error)}") from error


# Installing what others share, and verifying it.

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
        result = f"{self.measured} of {self.episodes} won here on {self.panel} [{low:.1%}, {high:.1%}]"
        if self.measured == self.claimed:
            return f"{result}, as its manifest says"
        return f"{result}; its manifest says {self.claimed}: {'within chance' if self.holds else 'the score is not reproduced'}"


def verify_score(module: Module, base: str | None = None, overrides: Overrides | None = None) -> Verdict:
    stage = module.run["checkpoint"].rpartition("-")[0]
    score = module.scores.get(stage)
    if score is None:
        raise TacitError(f"module {module.skill!r} has no score of its own weights ({module.run['checkpoint']}) to verify.")
    target = open_modules(module.path, overrides or {}, base, None)
    with tempfile.TemporaryDirectory(prefix="tacit-verify-") as directory:
        measured = PanelEvaluation(target, out=Path(directory), fresh=True).play(BATCH).score
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
                existing = "another module" if (target / MANIFEST).is_file() else "not a module"
                raise TacitError(f"{target} exists and is {existing}; use --replace to overwrite it, or another --out.")
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
    installed_module = read_module(path)
    return installed_module.to_json() == module.to_json() and not installed_module.find_damage()


def _check_module(module: Module, source: str, base: str | None, approve_draft: Callable[[Module], bool]) -> None:
    check_names(module)
    names = {file.name for file in module.path.iterdir()}
    if unlisted := sorted(names - {MANIFEST, CARD, *module.files}):
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
