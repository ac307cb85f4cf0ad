"""Install modules from an archive, a directory, a URL or the Hugging Face hub.

The source is not trusted. Everything is fetched into a temporary directory and checked there. Nothing is written to the
target directory before all checks passed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tacit.config.checks import open_world
from tacit.config.recipe import Overrides
from tacit.core.errors import TacitError
from tacit.core.world import FULL_BLOCK
from tacit.engines.models.bases import hash_file
from tacit.modules.archive import CARD, CHUNK, PACKAGE, SCORE_FIELDS, check_name, check_names, check_size, unpack
from tacit.modules.drafting.sandbox import check_source
from tacit.modules.drafting.sandbox_process import PARTS
from tacit.modules.drafting.tracker import SandboxedDraft
from tacit.modules.export import ADAPTER, ADAPTER_CONFIG
from tacit.modules.module import MANIFEST, Module, find_modules, read_module
from tacit.modules.router import module_recipe
from tacit.modules.verify import Verdict, find_problems, verify_score
from tacit.runs.files import write_directory

HUB = "hf:"
TIMEOUT_S = 60
MAX_MANIFEST = 1 << 22
"""bytes of a module.json"""


@dataclass(frozen=True)
class InstallOptions:
    max_bytes: int
    sha256: str = ""
    """expected hash of the archive; empty: not checked"""
    base: str | None = None
    """path of the base model, if it is not where it was in training"""
    replace: bool = False
    """overwrite another module of the same skill"""
    verify: bool = False
    """play the module's panel again"""
    engine: Overrides | None = None
    """engine settings for `verify`"""
    approve_draft: Callable[[Module], bool] = lambda module: False
    """show the draft that a module contains; return whether it may be run in its sandbox"""


@dataclass(frozen=True)
class InstalledModule:
    module: Module
    changed: bool
    """False if the same module was already installed"""
    verdict: Verdict | None = None


def install(source: str, out: Path, options: InstallOptions) -> list[InstalledModule]:
    with tempfile.TemporaryDirectory(prefix="tacit-install-") as staging:
        try:
            staged = [read_module(path) for path in fetch(source, Path(staging), options.max_bytes, options.sha256)]
            for module in staged:
                _check_module(module, source, options)
        except (AttributeError, TypeError, KeyError, ValueError) as error:  # the manifest may contain anything anywhere
            raise TacitError(f"{MANIFEST} of {source} is invalid: {type(error).__name__}: {error}.") from error
        for module in staged:
            target = out / module.skill
            if target.exists() and not options.replace and not _is_same(module, target):
                what = "another module" if (target / MANIFEST).is_file() else "not a module"
                raise TacitError(f"{target} exists and is {what}; use --replace to overwrite it, or another --out.")
        verdicts: list[Verdict | None] = []
        for module in staged:
            verdict = verify_score(module, options.base, options.engine or {}) if options.verify else None
            if verdict is not None and not verdict.holds:
                raise TacitError(f"module {module.skill!r} was not installed: {verdict}")
            verdicts.append(verdict)
        return [_write(module, out, verdict) for module, verdict in zip(staged, verdicts, strict=True)]


def _is_same(module: Module, path: Path) -> bool:
    if not (path / MANIFEST).is_file():
        return False
    there = read_module(path)
    return there.to_json() == module.to_json() and not there.find_damage()


def _write(module: Module, out: Path, verdict: Verdict | None) -> InstalledModule:
    target = out / module.skill
    changed = not _is_same(module, target)
    if changed:
        out.mkdir(parents=True, exist_ok=True)

        def fill(directory: Path) -> None:
            shutil.copytree(module.path, directory, dirs_exist_ok=True)

        write_directory(target, fill)
    return InstalledModule(replace(module, path=target), changed, verdict)


# Checks


def _check_module(module: Module, source: str, options: InstallOptions) -> None:
    check_names(module)
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
        if found := [reason for text in draft.texts for reason in check_source(text)]:
            raise TacitError(f"the draft in module {module.skill!r} is refused: {'; '.join(found)}.")
    if found := find_problems(module, options.base):
        raise TacitError(f"module {module.skill!r} was not installed: {'; '.join(found).replace(str(module.path), source)}")
    world = open_world(module.world)
    if not module.families or (world.playable and not set(module.families) <= set(world.families)):
        raise TacitError(
            f"module {module.skill!r} is for families {list(module.families)}; {module.display_world!r} has {world.families}."
        )
    module_recipe(module.path, {module.skill: module}, {})  # its settings must be readable
    if draft is not None:
        _try_draft(module, options)


def _try_draft(module: Module, options: InstallOptions) -> None:
    """Ask for approval, then load the draft once in its sandbox."""
    assert module.draft is not None
    if not options.approve_draft(module):
        raise TacitError(
            f"module {module.skill!r} contains a draft ({', '.join(module.draft.files)}) that was not approved to run; nothing "
            "was installed. Read it, then pass --yes."
        )
    tracker = open_world(module.world).tracker_of(module.context.get("form", FULL_BLOCK))
    assert isinstance(tracker, SandboxedDraft), "the module's world is the draft's"
    try:
        assert tracker.rules.claims
    finally:
        tracker.close()


# Sources


def fetch(source: str, staging: Path, max_bytes: int, sha256: str = "") -> list[Path]:
    """Fetch a source. Return one directory under `staging` per module, with contents not yet checked."""
    path = Path(source).expanduser()
    is_url, is_hub = "://" in source, source.startswith(HUB)
    if sha256 and (is_hub or (not is_url and path.is_dir())):
        raise TacitError(f"--sha256 is for one file; {source} is not a file.")
    if is_hub:
        return _fetch_from_hub(source.removeprefix(HUB), staging, max_bytes)
    if is_url:
        return [_unpack(_download(source, staging / "package", max_bytes), staging, max_bytes, sha256)]
    if path.is_dir():
        return _copy_directory(path, staging, max_bytes)
    if not path.is_file():
        raise TacitError(f"no archive or directory {source!r}; a URL starts with https://, a hub repository with hf:.")
    return [_unpack(path, staging, max_bytes, sha256)]


def _unpack(file: Path, staging: Path, max_bytes: int, sha256: str = "") -> Path:
    if sha256 and (actual := hash_file(file)) != sha256.lower():
        raise TacitError(f"{file.name} has sha256 {actual}, not {sha256}.")
    out = staging / "unpacked"
    out.mkdir()
    unpack(file, out, max_bytes)
    return out


def _copy_directory(path: Path, staging: Path, max_bytes: int) -> list[Path]:
    """Copy one module or several. Copies only the files that each module lists."""
    copies = []
    for module in find_modules(path).values():
        check_names(module)
        out = staging / module.skill
        out.mkdir()
        size = 0
        for name in [MANIFEST, *module.files, *(name for name in (CARD, PACKAGE) if (module.path / name).is_file())]:
            file = module.path / name
            if file.is_symlink() or not file.is_file():
                raise TacitError(f"{file} is a link or is missing; a module consists of regular files.")
            check_size(size := size + file.stat().st_size, max_bytes, module.path)
            shutil.copyfile(file, out / name)
        copies.append(out)
    return copies


def _download(url: str, file: Path, max_bytes: int) -> Path:
    if not url.startswith(("https://", "http://")):
        raise TacitError(f"cannot fetch {url!r}: a URL starts with https:// or http://.")
    try:
        with urllib.request.urlopen(urllib.request.Request(url), timeout=TIMEOUT_S) as response, file.open("wb") as written:
            expected, size = response.headers.get("content-length"), 0
            while chunk := response.read(CHUNK):
                check_size(size := size + len(chunk), max_bytes, url)
                written.write(chunk)
    except (urllib.error.URLError, HTTPException, OSError, ValueError) as error:
        raise TacitError(f"cannot fetch {url}: {error}.") from error
    if expected is not None and expected.isdigit() and size != int(expected):
        raise TacitError(f"{url} ended after {size:,} of {expected} bytes; try again.")
    return file


def _fetch_from_hub(name: str, staging: Path, max_bytes: int) -> list[Path]:
    """Fetch OWNER/NAME[@REVISION][:PATH]. PATH is an archive or a module's directory in the repository."""
    from httpx import HTTPError
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    whole, _, path = name.partition(":")
    repository, _, revision = whole.partition("@")
    try:
        info = HfApi().model_info(repository, revision=revision or None, files_metadata=True)
        sizes = {file.rfilename: file.size for file in info.siblings or ()}

        def get(file: str, limit: int = max_bytes) -> Path:
            if sizes.get(file) is None:
                raise TacitError(f"hf:{name} does not state the size of {file}; it was not fetched.")
            check_size(sizes[file] or 0, limit, f"hf:{repository}:{file}")
            return Path(hf_hub_download(repository, file, revision=info.sha or revision, local_dir=staging / "hub"))

        chosen = _choose_hub_file(name, path.strip("/"), sizes)
        if not chosen.endswith(MANIFEST):
            return [_unpack(get(chosen), staging, max_bytes)]
        folder, out = chosen.removesuffix(MANIFEST), staging / "module"
        out.mkdir()
        shutil.copyfile(get(chosen, MAX_MANIFEST), out / MANIFEST)
        try:
            files = list(json.loads((out / MANIFEST).read_text(encoding="utf-8"))["files"])
        except (ValueError, KeyError, TypeError) as error:
            raise TacitError(f"cannot read {MANIFEST} of hf:{name}: {type(error).__name__}: {error}.") from error
        for file in files:
            check_name(str(file), f"hf:{name}")
        check_size(sum(sizes.get(folder + file) or 0 for file in files), max_bytes, f"hf:{name}")
        for file in files:
            if folder + file not in sizes:
                raise TacitError(f"hf:{name} has no {folder}{file}, which its {MANIFEST} lists.")
            shutil.copyfile(get(folder + file), out / file)
        return [out]
    except (HTTPError, OSError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise TacitError(f"cannot fetch hf:{name}: {first}") from error


def _choose_hub_file(name: str, path: str, files: Mapping[str, Any]) -> str:
    """The archive or module.json that `path` means; if it is empty, the only one in the repository."""
    if path in files:
        return path
    manifest = f"{path}/{MANIFEST}" if path else MANIFEST
    if manifest in files:
        return manifest
    offers = sorted(file for file in files if file.endswith((f"/{MANIFEST}", ".tacit")))
    if not path and len(offers) == 1:
        return offers[0]
    known = ", ".join(f"hf:{name.partition(':')[0]}:{file.removesuffix(f'/{MANIFEST}')}" for file in offers[:10])
    raise TacitError(f"hf:{name} is not a module. {f'Choose one of {known}.' if offers else 'The repository has none.'}")
