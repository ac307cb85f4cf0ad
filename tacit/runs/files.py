"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError

REFUSALS = {
    errno.ENOSPC: ("the disk is full", "free space"),
    errno.EDQUOT: ("the disk quota is used up", "free space"),
    errno.EROFS: ("read-only disk", "make it writable"),
    errno.EACCES: (os.strerror(errno.EACCES), "make it writable"),
}
"""what is said, and what to do"""


class DiskError(TacitError):
    """A disk that refuses. Whoever knows the command that goes on from there names it."""

    def __init__(self, path: Path, error: OSError, command: str = "") -> None:
        self.path, self.error = path, error
        reason, remedy = REFUSALS.get(error.errno or 0, (error.strerror or str(error), "see to it"))
        with_it = f" with `{command}`" if command else ""
        super().__init__(f"cannot write {path}: {reason}. Nothing written earlier is lost; {remedy}, then go on{with_it}.")

    def naming(self, command: str) -> DiskError:
        return DiskError(self.path, self.error, command)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace `path` in one move: a reader, or a crash, sees the old file or the new one."""
    with explain_disk_errors(path):
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_directory(path: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a directory under a temporary name, then move it into place in one step."""
    with explain_disk_errors(path):
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        previous = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            fill(temporary)
            for file in temporary.rglob("*"):
                if file.is_file():
                    _sync(file)
            if path.exists():
                # Out of the way in one move too: a crash in the middle of deleting would leave half of it under its name.
                os.replace(path, previous)
            os.replace(temporary, path)
        finally:
            if previous.exists() and not path.exists():
                os.replace(previous, path)
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(previous, ignore_errors=True)


@contextlib.contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Say a full or read-only disk plainly. What was there before is still there."""
    try:
        yield
    except OSError as error:
        raise DiskError(path, error) from error
    except TacitError as error:  # of an engine that could not write its part
        refused = _refused(error.__cause__)
        if refused is None or refused.errno not in REFUSALS:
            raise
        raise DiskError(path, refused) from error


def _refused(error: BaseException | None) -> OSError | None:
    """What the disk said, also where a library that is not Python has only its words: `… (os error 28)`."""
    if isinstance(error, OSError):
        return error
    number = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
