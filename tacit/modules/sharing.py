"""A module as one file: a zip of its directory, a card, and a list of everything in it with hashes.

package.json    format, what it is, licence of the base, bytes and sha256 of every other file
README.md       the same in words
module.json, …  the module

Nothing is compressed, so a package never holds more than its own size; the same module gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tacit.config.checks import open_world
from tacit.config.recipe import Said
from tacit.core.errors import TacitError
from tacit.core.world import FULL_BLOCK
from tacit.engines.models.bases import hash_file
from tacit.modules.carrying import PREFIX
from tacit.modules.drafting.cell import PARTS
from tacit.modules.drafting.fence import read_only
from tacit.modules.drafting.tracker import FencedDraft
from tacit.modules.export import ADAPTER, ADAPTER_CONFIG, card_of
from tacit.modules.logs import NAME as WORK_NAME
from tacit.modules.module import MANIFEST, Module, find_modules, licence_of, read_module
from tacit.modules.router import module_recipe
from tacit.modules.verify import Verdict, problems, remeasure
from tacit.runs.files import explain_disk_errors, write_directory

PACKAGE, CARD = "package.json", "README.md"
FORMAT = 1
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
"""names of files and skills: one part of a path, not hidden"""
SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja", ".md")
"""what a module is made of: tensors and text, nothing that is run when it is read"""
TOLD = ("panel", "panel_hash", "episodes", "successes", "success", "interval")
"""of a score, to whoever gets the package"""
LONGEST_LIST = 1 << 22
"""bytes of package.json that are read"""
PIECE = 1 << 20
EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(module: Module, file: Path, base_licence: str = "") -> str:
    """Write the package, in one move; its sha256."""
    module.check_files()
    check_names(module)
    licence = licence_of(module.base, open_world(module.world), base_licence)
    card = card_of(module, licence).encode()
    sources = {name: module.path / name for name in (MANIFEST, *sorted(module.files))}
    listed = {name: {"bytes": source.stat().st_size, "sha256": hash_file(source)} for name, source in sources.items()}
    listed[CARD] = {"bytes": len(card), "sha256": hashlib.sha256(card).hexdigest()}
    told = {
        "format": FORMAT,
        "world": module.world,
        "skill": module.skill,
        "families": list(module.families),
        "base": {"model": module.base.model, "fingerprint": module.fingerprint, "licence": licence},
        "digest": module.digest,
        "scores": {stage: _score(score) for stage, score in module.scores.items()},
        "files": listed,
    }
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with explain_disk_errors(file):
        try:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr(_entry(PACKAGE), json.dumps(told, indent=2) + "\n")
                archive.writestr(_entry(CARD), card)
                for name, source in sources.items():
                    with source.open("rb") as read, archive.open(_entry(name), "w", force_zip64=True) as written:
                        while piece := read.read(PIECE):
                            written.write(piece)
            os.replace(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)
    return hash_file(file)


def unpack(file: Path, place: Path, most: int) -> None:
    """The package's files in `place`, each what the package says it is; anything else about it is refused."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = _checked(archive, file, most)
            listed = _listed(archive, entries, file)
            for name, entry in entries.items():
                if name != PACKAGE:
                    _copy(archive, entry, place / name, listed[name], file)
            (place / PACKAGE).write_bytes(archive.read(PACKAGE))
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise TacitError(f"{file} is no package of a module, or is damaged: {error}.") from error


def check_name(name: str, where: object) -> None:
    if not PLAIN.fullmatch(name):
        raise TacitError(f"{where} has a file named {name!r}, which could end up elsewhere; names here have no path.")
    if not name.endswith(SUFFIXES):
        raise TacitError(
            f"{where} has a file {name!r}; a module is tensors and text ({', '.join(SUFFIXES)}), and nothing that could be run."
        )


def check_names(module: Module) -> None:
    """Of its files and of itself: a manifest may say anything."""
    for name in module.files:
        check_name(name, f"module {module.skill!r}")
    if not PLAIN.fullmatch(module.skill):
        raise TacitError(f"the module's skill is called {module.skill!r}, which is no name of a directory.")


def _checked(archive: zipfile.ZipFile, file: Path, most: int) -> dict[str, zipfile.ZipInfo]:
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        check_name(entry.filename, file)
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise TacitError(f"{file} has a link, {entry.filename!r}; a package holds files only.")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise TacitError(f"{entry.filename!r} in {file} is compressed or encrypted; packages of modules are neither.")
        if entry.filename in entries:
            raise TacitError(f"{file} has {entry.filename!r} twice.")
        entries[entry.filename] = entry
    check_size(sum(entry.file_size for entry in entries.values()), most, file)
    return entries


def check_size(size: int, most: int, what: object) -> None:
    if size > most:
        raise TacitError(f"{what} has {size:,} bytes, and {most:,} are taken at most; --max-mb allows more.")


def _listed(archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], file: Path) -> Mapping[str, Any]:
    if PACKAGE not in entries or entries[PACKAGE].file_size > LONGEST_LIST:
        raise TacitError(f"{file} is no package of a module: it has no {PACKAGE}, or one that is too long.")
    try:
        told = json.loads(archive.read(PACKAGE))
        found, listed = told["format"], dict(told["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise TacitError(f"{PACKAGE} in {file} cannot be read: {type(error).__name__}: {error}.") from error
    if found != FORMAT:
        raise TacitError(f"{file} has format {found!r}; this version of tacit reads format {FORMAT}.")
    if others := sorted(set(listed) ^ (set(entries) - {PACKAGE})):
        raise TacitError(f"{file} does not hold what its {PACKAGE} lists: {', '.join(others[:5])}.")
    return listed


def _copy(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, place: Path, listed: Any, file: Path) -> None:
    digest, size = hashlib.sha256(), 0
    with archive.open(entry) as read, place.open("xb") as written:
        while piece := read.read(PIECE):
            digest.update(piece)
            size += len(piece)
            written.write(piece)
    if not isinstance(listed, dict) or (size, digest.hexdigest()) != (listed.get("bytes"), listed.get("sha256")):
        raise TacitError(
            f"{entry.filename!r} in {file} was changed: it is not what {PACKAGE} says (sha256 {digest.hexdigest()})."
        )


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    return entry


def _score(score: Mapping[str, Any]) -> dict[str, Any]:
    return {name: score[name] for name in TOLD}


# Where a module comes from: a package, a directory, an address, a repository of the hub. None of it is trusted.

HUB = "hf:"
WAIT_S = 60
LONGEST_MANIFEST = 1 << 22
"""bytes of a module.json that are read"""


def fetch(source: str, place: Path, most: int, sha256: str = "") -> list[Path]:
    """Directories under `place` that each hold the files of a module; not yet that they are what they say."""
    if source.startswith(HUB):
        _no_hash(source, sha256)
        return _from_hub(source.removeprefix(HUB), place, most)
    if "://" in source:
        return [_package(_download(source, place / "package", most), place, most, sha256)]
    path = Path(source).expanduser()
    if path.is_dir():
        _no_hash(source, sha256)
        return _from_directory(path, place, most)
    if not path.is_file():
        raise TacitError(
            f"there is no package or directory {source!r}; an address begins with https://, a repository with hf:."
        )
    return [_package(path, place, most, sha256)]


def _package(file: Path, place: Path, most: int, sha256: str) -> Path:
    if sha256 and (here := hash_file(file)) != sha256.lower():
        raise TacitError(f"{file.name} has sha256 {here}, not {sha256}: it is not the file that was meant.")
    inside = place / "unpacked"
    inside.mkdir()
    unpack(file, inside, most)
    return inside


def _from_directory(path: Path, place: Path, most: int) -> list[Path]:
    """A module, or several, with the files they list and nothing else that may lie there."""
    found = []
    for module in find_modules(path).values():
        check_names(module)
        inside = place / module.skill
        inside.mkdir()
        names = [MANIFEST, *module.files, *(name for name in (CARD, PACKAGE) if (module.path / name).is_file())]
        size = 0
        for name in names:
            file = module.path / name
            if file.is_symlink() or not file.is_file():
                raise TacitError(f"{file} is a link or is missing; a module is made of files.")
            check_size(size := size + file.stat().st_size, most, module.path)
            shutil.copyfile(file, inside / name)
        found.append(inside)
    return found


def _download(address: str, file: Path, most: int) -> Path:
    if not address.startswith(("https://", "http://")):
        raise TacitError(f"cannot fetch {address!r}: an address begins with https:// or http://.")
    try:
        with urllib.request.urlopen(urllib.request.Request(address), timeout=WAIT_S) as answer, file.open("wb") as written:
            told, size = answer.headers.get("content-length"), 0
            while piece := answer.read(PIECE):
                check_size(size := size + len(piece), most, address)
                written.write(piece)
    except (urllib.error.URLError, HTTPException, OSError, ValueError) as error:
        raise TacitError(f"cannot fetch {address}: {error}.") from error
    if told is not None and told.isdigit() and size != int(told):
        raise TacitError(f"{address} ended after {size:,} of {told} bytes; try again.")
    return file


def _from_hub(name: str, place: Path, most: int) -> list[Path]:
    """OWNER/NAME, then `@REVISION` and `:PATH` where they are wanted; the path is a package there, or a directory."""
    from httpx import HTTPError
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    whole, _, path = name.partition(":")
    repository, _, revision = whole.partition("@")
    try:
        told = HfApi().model_info(repository, revision=revision or None, files_metadata=True)
        there = {file.rfilename: file.size for file in told.siblings or ()}

        def get(file: str, largest: int = most) -> Path:
            if there.get(file) is None:
                raise TacitError(f"hf:{name} says nothing about the size of {file}; it is not fetched.")
            check_size(there[file] or 0, largest, f"hf:{repository}:{file}")
            return Path(hf_hub_download(repository, file, revision=told.sha or revision, local_dir=place / "hub"))

        chosen = _chosen(name, path.strip("/"), there)
        if not chosen.endswith(MANIFEST):
            return [_package(get(chosen), place, most, "")]
        folder, inside = chosen.removesuffix(MANIFEST), place / "module"
        inside.mkdir()
        shutil.copyfile(get(chosen, LONGEST_MANIFEST), inside / MANIFEST)
        names = _names_in(inside / MANIFEST, name)
        check_size(sum(there.get(folder + file) or 0 for file in names), most, f"hf:{name}")
        for file in names:
            if folder + file not in there:
                raise TacitError(f"hf:{name} has no {folder}{file}, which its {MANIFEST} lists.")
            shutil.copyfile(get(folder + file), inside / file)
        return [inside]
    except (HTTPError, OSError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise TacitError(f"cannot fetch hf:{name}: {first}") from error


def _chosen(name: str, path: str, there: Any) -> str:
    """The package, or the module.json, that is meant."""
    if path in there:
        return path
    manifest = f"{path}/{MANIFEST}" if path else MANIFEST
    if manifest in there:
        return manifest
    offers = sorted(file for file in there if file.endswith((f"/{MANIFEST}", ".tacit")))
    if not path and len(offers) == 1:
        return offers[0]
    known = ", ".join(f"hf:{name.partition(':')[0]}:{file.removesuffix(f'/{MANIFEST}')}" for file in offers[:10])
    raise TacitError(f"hf:{name} is no module. {f'There are {known}; name one of them.' if offers else 'It holds none.'}")


def _names_in(manifest: Path, name: str) -> list[str]:
    try:
        names = list(json.loads(manifest.read_text(encoding="utf-8"))["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise TacitError(f"{MANIFEST} of hf:{name} cannot be read: {type(error).__name__}: {error}.") from error
    for file in names:
        check_name(str(file), f"hf:{name}")
    return names


def _no_hash(source: str, sha256: str) -> None:
    if sha256:
        raise TacitError(f"--sha256 is for one file; {source} is none.")


# A module of somebody else's, put among one's own: only whole, only what it says it is, only where it can be played.

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
