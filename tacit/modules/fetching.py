"""Where a module comes from: a package, a directory, an address, a repository of the hub. None of it is trusted."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.engines.models.fingerprint import hash_file
from tacit.modules.module import MANIFEST, find_modules
from tacit.modules.packing import CARD, PACKAGE, PIECE, check_name, check_names, check_size, unpack

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
