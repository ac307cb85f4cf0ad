"""Final success once more, as rows × columns of the file's methods: who plays × what is read, say.

[grid]
columns = ["full block", "paper's block", "history"]
rows.reader = ["reader-full", "reader-paper", ""]        a method for each column, or none
rows.tiny-base = ["full", "paper", "history"]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.core.errors import TacitError, unknown

Found = dict[str, Any]
NOTHING: Found = {"start": None, "final": None}


@dataclass(frozen=True)
class Grid:
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    """row -> its methods, one for each column; empty where there is none"""


def read_grid(value: Any, methods: Collection[str]) -> Grid | None:
    if value is None:
        return None
    columns, rows = (value.get("columns"), value.get("rows")) if isinstance(value, Mapping) else (None, None)
    if not columns or not _texts(columns) or not isinstance(rows, Mapping) or not all(map(_texts, rows.values())):
        raise TacitError("[grid] must hold `columns`, a list of names, and for each row `rows.NAME`, a list of methods.")
    for name, own in rows.items():
        if len(own) != len(columns):
            raise TacitError(f"[grid] has {len(columns)} columns, rows.{name} {len(own)} methods; '' leaves a place empty.")
        for method in filter(None, own):
            if method not in methods:
                raise unknown(f"method in rows.{name} of [grid]", method, methods)
    return Grid(tuple(columns), {name: tuple(own) for name, own in rows.items()})


def make_grids(grid: Grid | None, rows: Sequence[Found], panels: Sequence[str]) -> list[Found]:
    """One for each panel, the first of which is the world's own, from the rows of its table. Those who practise are told twice:
    where they began, and where they ended."""
    if grid is None:
        return []
    by_method = {row["method"]: row for row in rows}
    found = []
    for number, panel in enumerate(panels):
        lines = []
        for name, own in grid.rows.items():
            told = [_on(by_method[method], panel if number else "") if method else NOTHING for method in own]
            ends = ("start", "final") if any(measures["start"] for measures in told) else ("final",)
            for end in ends:
                line = f"{name}, {end}" if len(ends) > 1 else name
                lines.append({"name": line, "measures": [measures[end] for measures in told]})
        found.append({"panel": panel, "columns": list(grid.columns), "rows": lines})
    return found


def _on(row: Found, further: str) -> Found:
    """start and final of a row, on its own panel or on a further one."""
    return row["further"].get(further, NOTHING) if further else row


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
