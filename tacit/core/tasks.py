"""Shared parts of the worlds' task lists: splits by digest, seeded order, panel hashes, and reports of files that were read."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence


def split_by_digest(name: str) -> str:
    """`train` for eight tenths of all names, `test` for one tenth, `hard` for one tenth; the same on every machine."""
    tenth = zlib.crc32(name.encode()) % 10
    return "test" if tenth == 8 else "hard" if tenth == 9 else "train"


def shuffle_key(seed: int, task_id: str) -> bytes:
    """Sort key for a seeded random order. Adding or removing ids does not reorder the others."""
    return hashlib.sha256(f"{seed}:{task_id}".encode()).digest()


def parse_panels(table: str) -> Mapping[str, Mapping[int, str]]:
    """split -> number of tasks -> panel hash, from lines of the form `split  16:hash 128:hash`."""
    rows = (line.split() for line in table.strip().splitlines())
    return {split: {int(count): digest for count, digest in (cell.split(":") for cell in cells)} for split, *cells in rows}


def describe_failures(failures: Sequence[str]) -> str:
    """`, 7 could not be read:` and the first five reasons, one per line; empty if nothing failed."""
    if not failures:
        return ""
    lines = "\n".join(f"  {failure}" for failure in failures[:5])
    more = f"\n  … and {len(failures) - 5} more" if len(failures) > 5 else ""
    return f", {len(failures)} could not be read:\n{lines}{more}"
