"""Atomic file writes, bounded reads of JSON lines, and disk errors with remedies."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.files import MAX_BYTES, check_readable, refuse_links

REFUSALS = {
    errno.ENOSPC: ("the disk is full", "free space"),
    errno.EDQUOT: ("the disk quota is used up", "free space"),
    errno.EROFS: ("read-only disk", "make it writable"),
    errno.EACCES: (os.strerror(errno.EACCES), "make it writable"),
}
"""errno -> (reason, remedy)"""


class DiskError(TacitError):
    """A failed write. `naming` adds the command that resumes the run."""

    def __init__(self, path: Path, error: OSError, command: str = "") -> None:
        self.path, self.error = path, error
        reason, remedy = REFUSALS.get(error.errno or 0, (error.strerror or str(error), "fix this"))
        resume = f" with `{command}`" if command else ""
        super().__init__(f"cannot write {path}: {reason}. Earlier files are intact; {remedy}, then continue{resume}.")

    def naming(self, command: str) -> DiskError:
        return DiskError(self.path, self.error, command)


MAX_EXPANDED = MAX_BYTES  # maximum bytes of a file of JSON lines, uncompressed: a few megabytes of gzip can become gigabytes
MAX_LINE = 1 << 26  # maximum bytes of one line


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, gzipped if its name ends in .gz. Raises OSError if the file is too large or damaged."""
    total = 0
    check_readable(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            while line := file.readline(MAX_LINE + 1):
                total += len(line)
                if len(line) > MAX_LINE or total > MAX_EXPANDED:
                    raise OSError(f"a line is longer than {MAX_LINE:,} bytes, or the file than {MAX_EXPANDED:,} bytes")
                yield line
    except (EOFError, zlib.error) as error:
        raise OSError(str(error) or type(error).__name__) from error


def read_objects(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines; empty if it does not exist. Skips lines that do not parse (partial writes)."""
    objects = []
    try:
        for line in read_lines(path) if path.exists() else ():
            with contextlib.suppress(ValueError, RecursionError):
                objects.append(json.loads(line))
    except OSError as error:
        raise TacitError(f"cannot read {path}: {error}.") from error
    return [value for value in objects if isinstance(value, dict)]


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace `path` atomically: a reader or a crash sees the old file or the new one."""
    with explain_disk_errors(path):
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "w", encoding="utf-8", opener=refuse_links) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_directory(path: Path, fill: Callable[[Path], None]) -> None:
    """`fill` writes the directory under a temporary name; then it replaces `path` atomically."""
    with explain_disk_errors(path):
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        previous = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            fill(temporary)
            for file in temporary.rglob("*"):
                if file.is_file():
                    descriptor = os.open(file, os.O_RDONLY)
                    try:
                        os.fsync(descriptor)
                    finally:
                        os.close(descriptor)
            if path.exists():
                # Move it instead of deleting it in place: a crash while deleting would leave half of it.
                os.replace(path, previous)
            os.replace(temporary, path)
        finally:
            if previous.exists() and not path.exists():
                os.replace(previous, path)
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(previous, ignore_errors=True)


@contextlib.contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of a full or read-only disk into DiskError."""
    try:
        yield
    except OSError as error:
        raise DiskError(path, error) from error
    except TacitError as error:  # from a write by an engine
        refused = _refused(error.__cause__)
        if refused is None or refused.errno not in REFUSALS:
            raise
        raise DiskError(path, refused) from error


def _refused(error: BaseException | None) -> OSError | None:
    """The OSError behind an error, also from a message `… (os error 28)` of a native library; None if there is none."""
    if isinstance(error, OSError):
        return error
    number = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else None
