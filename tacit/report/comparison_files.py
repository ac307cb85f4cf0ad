"""What a comparison's directory says: comparison.json, whose layout is the docstring of `tacit.comparison`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.report.run_files import Record, has, read_table

COMPARISON = "comparison.json"
FORMAT = 1


@dataclass(frozen=True)
class Comparison:
    path: Path
    found: Record
    cells: Sequence[Record]
    rows: Sequence[Record]
    """of the table: one per world and method"""
    worlds: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[str]
    notices: tuple[str, ...]

    @property
    def baseline(self) -> str:
        return str(self.found.get("baseline") or next(iter(self.methods), ""))

    def colour(self, method: str) -> int:
        """A method has one colour on the whole page."""
        return self.methods.index(method) if method in self.methods else len(self.methods)

    def cells_of(self, world: str, method: str, finished: bool = False) -> list[Record]:
        own = [cell for cell in self.cells if (cell["world"], cell["method"]) == (world, method)]
        return [cell for cell in own if cell["status"] == "finished"] if finished else own

    def place(self, cell: Record) -> Path:
        """The run's directory, which may not be there."""
        return self.path / str(cell.get("run") or "nowhere")


def read_comparison(path: Path) -> Comparison:
    """Broken cells are left out and counted; a file that is no comparison at all is refused."""
    told: list[str] = []
    found = read_table(path / COMPARISON, told)
    said = found.get("cells")
    if not isinstance(said, list):
        why = told[0] if told else "it has no cells."
        remedy = "`tacit compare` writes it anew; `tacit report` also takes its runs one by one."
        raise TacitError(f"{path / COMPARISON} is no comparison: {why} {remedy}")
    notices = list(map(str, _list(found.get("notes"))))
    if found.get("format") != FORMAT:
        other = f"{COMPARISON} is of format {found.get('format')!r}, this version reads {FORMAT}"
        notices.append(f"{other}: what differs is missing.")
    cells = [cell for cell in entries(said) if has(cell, {"world": str, "method": str, "status": str})]
    if len(cells) < len(said):
        notices.append(f"{len(said) - len(cells)} of {len(said)} cells cannot be read, and are left out.")
    rows = [row for row in entries(found.get("table")) if has(row, {"world": str, "method": str})]
    if not rows:
        notices.append("There is no table: no run has finished, or the runs of a world were measured on different panels.")
    worlds, methods, seeds = (
        list(dict.fromkeys([*map(str, _list(found.get(f"{key}s"))), *(str(cell.get(key)) for cell in cells)]))
        for key in ("world", "method", "seed")
    )
    return Comparison(path, found, cells, rows, worlds, methods, seeds, tuple(notices))


def entries(value: Any) -> list[Record]:
    """The tables of a list, whatever else is in it."""
    return [entry for entry in _list(value) if isinstance(entry, Mapping)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
