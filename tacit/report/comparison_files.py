"""What a comparison's directory says: comparison.json, whose layout is the docstring of `tacit.comparison`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.report.run_files import Record

COMPARISON = "comparison.json"
FORMAT = 1
NEEDED_OF_CELL = ("world", "method", "status")
"""texts without which a cell has no place on the page"""


@dataclass(frozen=True)
class Comparison:
    path: Path
    found: Record
    cells: Sequence[Record]
    rows: Sequence[Record]
    """of the table: one per world and method"""
    notices: tuple[str, ...]

    @cached_property
    def worlds(self) -> list[str]:
        return _names(self.found.get("worlds"), [str(c["world"]) for c in self.cells])

    @cached_property
    def methods(self) -> list[str]:
        return _names(self.found.get("methods"), [str(c["method"]) for c in self.cells])

    @cached_property
    def seeds(self) -> list[str]:
        return _names(self.found.get("seeds"), [str(c.get("seed")) for c in self.cells])

    @property
    def baseline(self) -> str:
        return str(self.found.get("baseline") or (self.methods[0] if self.methods else ""))

    def colour(self, method: str) -> int:
        """A method has one colour on the whole page."""
        return self.methods.index(method) if method in self.methods else len(self.methods)

    def rows_of(self, world: str) -> list[Record]:
        return [row for row in self.rows if row["world"] == world]

    def cells_of(self, world: str, method: str) -> list[Record]:
        return [cell for cell in self.cells if (cell["world"], cell["method"]) == (world, method)]


def read_comparison(path: Path) -> Comparison:
    """Broken cells are left out and counted; a file that is no comparison at all is refused."""
    file = path / COMPARISON
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TacitError(
            f"cannot read {file}: {error}. `tacit compare` writes it anew; `tacit report` also takes its runs one by one."
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("cells"), list):
        raise TacitError(f"{file} holds no cells, so it is no comparison; write it with `tacit compare`.")
    notes = found.get("notes")
    notices = [str(note) for note in notes] if isinstance(notes, list) else []
    if found.get("format") != FORMAT:
        notices.append(
            f"{COMPARISON} is of format {found.get('format')!r}, this version reads {FORMAT}: what differs is missing."
        )
    cells = [c for c in entries(found["cells"]) if _says(c, *NEEDED_OF_CELL)]
    if len(cells) < len(found["cells"]):
        notices.append(f"{len(found['cells']) - len(cells)} of {len(found['cells'])} cells cannot be read, and are left out.")
    said = found.get("table")
    rows = [r for r in entries(said) if _says(r, "world", "method")]
    if not rows:
        notices.append("There is no table: no run has finished, or the runs of a world were measured on different panels.")
    return Comparison(path, found, cells, rows, tuple(notices))


def entries(value: Any) -> list[Record]:
    """The tables of a list, whatever else is in it."""
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def table_of(value: Any) -> Record:
    """A table of values, empty where there is none."""
    return value if isinstance(value, Mapping) else {}


def _says(entry: Record, *names: str) -> bool:
    return all(isinstance(entry.get(name), str) for name in names)


def _names(said: Any, used: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*(map(str, said) if isinstance(said, list) else []), *used]))
