"""Portable checkpoints: a run in a few files, to continue it on another machine.

    pack.json              run name, model, method, checkpoint, and size and sha256 of every part
    part-000, part-001, …  a gzipped tar of the run directory, cut into parts of at most 16 MB

The tar holds settings, metrics, evaluations and one checkpoint; no trajectories. A run continued from it equals an
uninterrupted one, bit for bit on a CPU.

`compact` rounds the optimizer's state (engines/local/checkpoint.py): about 2 bytes per trained parameter instead of 13.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import platform
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tacit.config.checks import AGENTS
from tacit.config.recipe import method_name
from tacit.core.errors import TacitError, describe_error
from tacit.core.files import read_json
from tacit.engines.models.bases import BASES, checkpoint_directory, fingerprint, hash_file
from tacit.engines.models.tiny import TINY_SIZES
from tacit.runs.directory import SETTINGS, open_checkpoints, read_settings, resume_command
from tacit.runs.files import explain_disk_errors, write_directory, write_json

MANIFEST, FORMAT, USES = "pack.json", 1, "unpacked.json"
PART_BYTES = 16_000_000
MAX_RATIO, MIN_ROOM = 64, 1 << 26  # an unpacked run may have 64 times the bytes of its parts plus 64 MiB
SKIPPED = ("checkpoints", "trajectories", "tensorboard", ".lock")


def is_pack(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def pack_run(run: Path, out: Path, checkpoint: str = "newest", compact: bool = False) -> dict[str, Any]:
    """Write the pack of a run to the new directory `out`, and return its manifest."""
    settings = read_settings(run)
    chosen = open_checkpoints(run).find(checkpoint)
    if out.exists():
        raise TacitError(f"{out} already exists; give another directory with --out, or remove it.")
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "run": run.resolve().name,
        "method": method_name(settings),
        "model": settings.get("model", ""),
        "fingerprint": _fingerprint(settings.get("model", "")),
        "checkpoint": chosen.path.name,
        "compact": compact,
    }

    from tacit.engines.local.checkpoint import compact_file  # imports torch

    def fill(directory: Path) -> None:
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            archive = Path(scratch) / "run.tar.gz"
            with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
                for file in sorted(p for p in run.rglob("*") if p.is_file()):
                    name = file.relative_to(run)
                    if name.parts[0] not in SKIPPED and not file.name.endswith(".tmp"):
                        tar.add(_check_no_link(file), str(name))
                for file in sorted(p for p in chosen.path.rglob("*") if p.is_file()):
                    _check_no_link(file)
                    name = Path("checkpoints") / chosen.path.name / file.relative_to(chosen.path)
                    if compact and (small := compact_file(file)) is not None:
                        info = tarfile.TarInfo(str(name))
                        info.size = len(small)
                        tar.addfile(info, io.BytesIO(small))
                    else:
                        tar.add(file, str(name))
            manifest["parts"] = list(_cut(archive, directory))
        write_json(directory / MANIFEST, manifest)

    write_directory(out, fill)
    return manifest


def _check_no_link(file: Path) -> Path:
    """Raises for a link: its file may be outside of the run, and `unpack_run` accepts regular files only."""
    if file.is_symlink():
        raise TacitError(f"{file} is a symbolic link; replace it by a copy of the file to pack the run.")
    return file


def unpack_run(pack: Path, out: Path | None = None, model: str = "") -> tuple[Path, str]:
    """Restore the run into `out` (default: its name, beside the pack). `model`: path of its base model on this machine. Returns
    (run directory, time and place of the previous unpacking or "")."""
    manifest = read_manifest(pack)
    out = out or pack.resolve().parent / manifest["run"]
    if out.exists():
        raise TacitError(
            f"{out} already exists. Continue it with `{resume_command(out)}`, or start again from the pack with "
            f"`tacit runs unpack {pack} --out OTHER`."
        )
    base = model or manifest["model"]
    if manifest["fingerprint"] and (here := _fingerprint(base, why=pack)) != manifest["fingerprint"]:
        raise TacitError(
            f"{pack} continues a run of model {manifest['model']} with fingerprint {manifest['fingerprint'][:12]}, but {base} "
            f"has {here[:12]}: another model, or another version of it. Give the right one with --model."
        )

    from tacit.engines.local.checkpoint import restore_file  # imports torch

    def fill(directory: Path) -> None:
        try:
            with tempfile.TemporaryFile(dir=directory) as whole:
                for part in manifest["parts"]:
                    with (pack / Path(part["name"]).name).open("rb") as one:
                        shutil.copyfileobj(one, whole)
                limit = MAX_RATIO * whole.tell() + MIN_ROOM
                whole.seek(0)
                with _Expanding(whole, limit) as plain, tarfile.open(fileobj=plain, mode="r|") as tar:
                    for member in tar:
                        if not member.isfile() or member.size > limit:
                            raise TacitError(f"{pack} is not a packed run: {member.name!r} is not a file, or too large.")
                        tar.extract(member, directory, filter="data")
            for file in sorted(directory.rglob("training/*.safetensors")):
                restore_file(file)
        except (TacitError, MemoryError):
            raise
        except Exception as error:  # the parts are untrusted input
            raise TacitError(f"{pack} is damaged: {describe_error(error)}. Copy it again.") from error
        settings = read_settings(directory)
        if model:
            write_json(directory / SETTINGS, {**settings, "model": model})

    write_directory(out, fill)
    uses: list[str] = []
    with contextlib.suppress(OSError, ValueError, TypeError):
        uses += [str(use) for use in read_json(pack / USES) if str(use).isprintable()]
    write_json(pack / USES, [*uses, f"{time.strftime('%Y-%m-%d %H:%M:%S')} on {platform.node()} to {out}"])
    return out, uses[-1] if uses else ""


class _Expanding(gzip.GzipFile):
    """Raises once a file has expanded to more than `limit` bytes (a decompression bomb). tarfile reads each header whole into
    memory, so checking the sizes of its members would be too late."""

    def __init__(self, packed: IO[bytes], limit: int) -> None:
        super().__init__(fileobj=packed)
        self._limit = limit

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > self._limit:
            raise OSError(f"it expands to more than {self._limit:,} bytes")
        return super().read(size)


def read_manifest(pack: Path) -> dict[str, Any]:
    """Raises if the pack is incomplete or damaged."""
    file = pack / MANIFEST
    try:
        manifest = read_json(file)
        if manifest["format"] != FORMAT:
            raise TacitError(f"{file} has format {manifest['format']}; this version of Tacit reads format {FORMAT}.")
        for key in ("run", "model", "fingerprint", "checkpoint"):
            if not isinstance(manifest[key], str) or not manifest[key].isprintable():
                raise ValueError(f"{key} is {str(manifest[key])[:80]!r}")
        if Path(manifest["run"]).name != manifest["run"] or manifest["run"] in ("", ".", ".."):
            raise ValueError(f"the run's name {manifest['run']!r} is not a directory name")
        for part in manifest["parts"]:
            part_file = pack / Path(part["name"]).name
            if not part_file.is_file() or part_file.stat().st_size != part["bytes"] or hash_file(part_file) != part["sha256"]:
                raise TacitError(
                    f"{part_file} is missing or damaged: its sha256 is not the one in {file}. Copy the pack again."
                )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TacitError(f"cannot read {file}: {error}. Is {pack} a directory that `tacit runs pack` wrote?") from error
    return manifest


def _fingerprint(model: str, why: Path | None = None) -> str:
    """Fingerprint of a model's files; "" for a built-in model. `why`: the pack that needs the model, for the error."""
    if model in TINY_SIZES or model in BASES or model in AGENTS:
        return ""
    try:
        return fingerprint(checkpoint_directory(model))
    except TacitError as error:
        if why is None:
            raise
        raise TacitError(
            f"{why} continues a run of model {model}, which was not found: {error} Give its path with --model."
        ) from error


def _cut(archive: Path, directory: Path) -> Iterator[dict[str, Any]]:
    with archive.open("rb") as source, explain_disk_errors(directory):
        for number, data in enumerate(iter(lambda: source.read(PART_BYTES), b"")):
            name = f"part-{number:03d}"
            (directory / name).write_bytes(data)
            yield {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
