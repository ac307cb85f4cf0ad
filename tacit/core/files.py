"""Safe access to untrusted files: those of runs, modules and models."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import IO, Any

MAX_BYTES = 1 << 29
MAX_TENSOR_HEADER = 100_000_000


def check_readable(path: Path) -> Path:
    """The path, if it is a regular file of at most MAX_BYTES (.gz and .safetensors: any size). Opening a named pipe in an
    untrusted run would block forever, and reading a device would never end."""
    state = path.stat()
    if not stat.S_ISREG(state.st_mode) or (path.suffix not in (".gz", ".safetensors") and state.st_size > MAX_BYTES):
        raise OSError(f"{path.name} is not a regular file, or has more than {MAX_BYTES:,} bytes")
    return path


def refuse_links(path: str, flags: int) -> int:
    """An `opener` for writing that refuses symbolic links. A link in an untrusted run could lead to any file of the user."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def read_text(path: Path) -> str:
    return check_readable(path).read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises OSError or ValueError only."""
    try:
        return json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deeply") from error


def read_tensor_header(opened: IO[bytes]) -> tuple[int, dict[str, Any]]:
    """(offset of the data in an open safetensors file, its tensors by name). Raises ValueError if there is no such header or
    if the file is shorter than it says."""
    start = 8 + int.from_bytes(opened.read(8), "little")
    if start > MAX_TENSOR_HEADER:
        raise ValueError(f"{opened.name} has a header of {start} bytes")
    try:
        header: dict[str, Any] = json.loads(opened.read(start - 8))
        header.pop("__metadata__", None)
        expected = start + max((int(tensor["data_offsets"][1]) for tensor in header.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{opened.name} has no valid header of safetensors") from error
    size = os.fstat(opened.fileno()).st_size
    if size < expected:
        raise ValueError(f"{opened.name} is truncated: it has {size:,} of {expected:,} bytes")
    return start, header


def check_tensors(directory: Path) -> None:
    """Raise OSError or ValueError if a safetensors file below the directory is truncated or has no valid header. Reads the
    headers only."""
    for file in sorted(directory.rglob("*.safetensors")):
        with check_readable(file).open("rb") as opened:
            read_tensor_header(opened)
