"""Safe access to files of runs, modules and models, which may come from strangers."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 29


def check_readable(path: Path) -> Path:
    """The path, if it is a file of an ordinary size. Opening a named pipe in a stranger's run would wait forever, and a device
    has no end."""
    state = path.stat()
    if not stat.S_ISREG(state.st_mode) or (path.suffix not in (".gz", ".safetensors") and state.st_size > MAX_BYTES):
        raise OSError(f"{path.name} is not a file, or has more than {MAX_BYTES:,} bytes")
    return path


def refuse_links(path: str, flags: int) -> int:
    """An `opener` for writing. A link in a stranger's run could lead to any file of the user's."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def read_text(path: Path) -> str:
    return check_readable(path).read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises OSError or ValueError only."""
    try:
        return json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deeply") from error
