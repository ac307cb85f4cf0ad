"""A module as one file, for machines without a hub: an uncompressed zip of its directory and a card.

module.json lists every other file with its hash, so the archive needs no list of its own. Packing the same module twice gives
the same bytes. Archives of earlier versions also contain a package.json, which is ignored.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import zipfile
from pathlib import Path

from tacit.config.checks import open_world
from tacit.core.errors import TacitError
from tacit.engines.models.bases import hash_file
from tacit.modules.export import render_card
from tacit.modules.module import MANIFEST, Module, find_license
from tacit.runs.files import explain_disk_errors

CARD, LEGACY = "README.md", "package.json"
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
"""names of files and skills: a single path component, not hidden"""
SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja", ".md")
"""tensors and text; nothing that runs when it is read"""
EPOCH = (1980, 1, 1, 0, 0, 0)


def prepare_to_share(module: Module, base_license: str = "") -> str:
    """Check that a module can be passed on. Return its card."""
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
                archive.writestr(_make_entry(CARD), card)
                for name in (MANIFEST, *sorted(module.files)):
                    with (
                        (module.path / name).open("rb") as read,
                        archive.open(_make_entry(name), "w", force_zip64=True) as written,
                    ):
                        shutil.copyfileobj(read, written)
            os.replace(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)
    return hash_file(file)


def _make_entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    return entry


def unpack(file: Path, out: Path, max_bytes: int) -> None:
    """Extract an archive into `out`. Unsafe names, links and compression are errors; hashes are checked with the module."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            check_size(sum(entry.file_size for entry in entries), max_bytes, file)
            for entry in entries:
                check_name(entry.filename, file)
                if stat.S_ISLNK(entry.external_attr >> 16):
                    raise TacitError(
                        f"{file} contains the link {entry.filename!r}; module archives contain regular files only."
                    )
                if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                    raise TacitError(f"{entry.filename!r} in {file} is compressed or encrypted; module archives are neither.")
                if (out / entry.filename).exists():
                    raise TacitError(f"{file} contains {entry.filename!r} twice.")
                with archive.open(entry) as read, (out / entry.filename).open("xb") as written:
                    shutil.copyfileobj(read, written)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise TacitError(f"{file} is not a module archive, or is damaged: {error}.") from error
    (out / LEGACY).unlink(missing_ok=True)
    if not (out / MANIFEST).is_file():
        raise TacitError(f"{file} is not a module archive: it has no {MANIFEST}.")


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
