"""A module as one file: an uncompressed zip of its directory, a card, and a list of its files with hashes.

package.json    format, world, skill, scores, license of the base, bytes and sha256 of every other file
README.md       the card
module.json, …  the module

Packing the same module twice gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import zipfile
from pathlib import Path
from typing import Any

from tacit.config.checks import open_world
from tacit.core.errors import TacitError
from tacit.engines.models.bases import hash_file
from tacit.modules.export import render_card
from tacit.modules.module import MANIFEST, Module, find_license
from tacit.runs.files import explain_disk_errors

PACKAGE, CARD = "package.json", "README.md"
FORMAT = 1
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
"""names of files and skills: a single path component, not hidden"""
SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja", ".md")
"""tensors and text; nothing that runs when it is read"""
SCORE_FIELDS = ("panel", "panel_hash", "episodes", "successes", "success", "interval")
"""fields of a score that package.json repeats"""
MAX_PACKAGE_JSON = 1 << 22
"""bytes"""
CHUNK = 1 << 20
EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(module: Module, file: Path, base_license: str = "") -> str:
    """Write the archive atomically. Return its sha256."""
    module.check_files()
    check_names(module)
    license_name = find_license(module.base, open_world(module.world), base_license)
    card = render_card(module, license_name).encode()
    sources = {name: module.path / name for name in (MANIFEST, *sorted(module.files))}
    listed = {name: {"bytes": source.stat().st_size, "sha256": hash_file(source)} for name, source in sources.items()}
    listed[CARD] = {"bytes": len(card), "sha256": hashlib.sha256(card).hexdigest()}
    package = {
        "format": FORMAT,
        "world": module.world,
        "skill": module.skill,
        "families": list(module.families),
        "base": {"model": module.base.model, "fingerprint": module.fingerprint, "licence": license_name},
        "digest": module.digest,
        "scores": {stage: {name: score[name] for name in SCORE_FIELDS} for stage, score in module.scores.items()},
        "files": listed,
    }
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with explain_disk_errors(file):
        try:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr(_make_entry(PACKAGE), json.dumps(package, indent=2) + "\n")
                archive.writestr(_make_entry(CARD), card)
                for name, source in sources.items():
                    with source.open("rb") as read, archive.open(_make_entry(name), "w", force_zip64=True) as written:
                        while chunk := read.read(CHUNK):
                            written.write(chunk)
            os.replace(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)
    return hash_file(file)


def _make_entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    return entry


def unpack(file: Path, out: Path, max_bytes: int) -> None:
    """Extract an archive into `out`. Unsafe names, links, compression and hash mismatches are errors."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = _check_entries(archive, file, max_bytes)
            listed = _read_file_list(archive, entries, file)
            for name, entry in entries.items():
                if name != PACKAGE:
                    _extract(archive, entry, out / name, listed[name], file)
            (out / PACKAGE).write_bytes(archive.read(PACKAGE))
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise TacitError(f"{file} is not a module archive, or is damaged: {error}.") from error


def _check_entries(archive: zipfile.ZipFile, file: Path, max_bytes: int) -> dict[str, zipfile.ZipInfo]:
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        check_name(entry.filename, file)
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise TacitError(f"{file} contains the link {entry.filename!r}; module archives contain only regular files.")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise TacitError(f"{entry.filename!r} in {file} is compressed or encrypted; module archives are neither.")
        if entry.filename in entries:
            raise TacitError(f"{file} contains {entry.filename!r} twice.")
        entries[entry.filename] = entry
    check_size(sum(entry.file_size for entry in entries.values()), max_bytes, file)
    return entries


def _read_file_list(archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], file: Path) -> dict[str, Any]:
    if PACKAGE not in entries or entries[PACKAGE].file_size > MAX_PACKAGE_JSON:
        raise TacitError(f"{file} is not a module archive: its {PACKAGE} is missing or too large.")
    try:
        package = json.loads(archive.read(PACKAGE))
        version, listed = package["format"], dict(package["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise TacitError(f"cannot read {PACKAGE} in {file}: {type(error).__name__}: {error}.") from error
    if version != FORMAT:
        raise TacitError(f"{file} has format {version!r}; this version of tacit reads format {FORMAT}.")
    if others := sorted(set(listed) ^ (set(entries) - {PACKAGE})):
        raise TacitError(f"the contents of {file} do not match its {PACKAGE}: {', '.join(others[:5])}.")
    return listed


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, out: Path, listed: Any, file: Path) -> None:
    digest, size = hashlib.sha256(), 0
    with archive.open(entry) as read, out.open("xb") as written:
        while chunk := read.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            written.write(chunk)
    if not isinstance(listed, dict) or (size, digest.hexdigest()) != (listed.get("bytes"), listed.get("sha256")):
        raise TacitError(f"{entry.filename!r} in {file} does not match {PACKAGE} (sha256 {digest.hexdigest()}).")


def check_name(name: str, where: object) -> None:
    if not SAFE_NAME.fullmatch(name):
        raise TacitError(f"{where} contains a file with the unsafe name {name!r}; names must not contain a path.")
    if not name.endswith(SUFFIXES):
        raise TacitError(f"{where} contains {name!r}; a module may only contain tensors and text ({', '.join(SUFFIXES)}).")


def check_names(module: Module) -> None:
    """Check the module's skill and file names: the manifest may come from anybody."""
    for name in module.files:
        check_name(name, f"module {module.skill!r}")
    if not SAFE_NAME.fullmatch(module.skill):
        raise TacitError(f"the module's skill {module.skill!r} cannot be used as a directory name.")


def check_size(size: int, max_bytes: int, what: object) -> None:
    if size > max_bytes:
        raise TacitError(f"{what} has {size:,} bytes, more than the limit of {max_bytes:,}; raise it with --max-mb.")
