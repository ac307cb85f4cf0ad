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
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.assembly.checks import open_world
from tacit.core.errors import TacitError
from tacit.engines.models.fingerprint import hash_file
from tacit.modules.card import card_of
from tacit.modules.licence import licence_of
from tacit.modules.module import MANIFEST, Module
from tacit.runs.files import disk_errors

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
    with disk_errors(file):
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
