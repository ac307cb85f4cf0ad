"""Safe access to untrusted files: those of runs, modules and models."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 29


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
