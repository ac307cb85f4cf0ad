"""What is seen, written as text and read back.

    it says: You kill the newt!
    hp: 12/12
    holds: key                          where there is one to be held
    legend: . floor; @ you; > stairs down; F lichen; _ not seen
    map:
    _..._
    _.@._
    _.F>_

The map is a fixed window of the terminal's, so that a place keeps its coordinates; what was seen before stays on it, as NetHack
shows it. Symbols are NetHack's but for two: `_` is what was never seen, which the terminal leaves blank, and `'` an open
door, which it draws like a wall.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

UNSEEN, OPEN_DOOR, YOU, STAIRS, KEY, DOOR, BOULDER, WATER, TRAP = "_", "'", "@", ">", "(", "+", "`", "}", "^"
WALLS = "|-"
FLOOR = ".<>'"
"""what one can walk on; things that lie about are floor too"""
THINGS = '()[%*!?/=$"*'
"""symbols of things that lie on the floor"""

_MEANINGS = {
    "floor of a room": "floor",
    "dark part of a room": "floor",
    "staircase down": "stairs down",
    "staircase up": "stairs up",
}
_TEXT = re.compile(r"\A(?:it says: (.*)\n)?hp: (-?\d+)/(\d+)\n(?:holds: (.*)\n)?legend: (.*)\nmap:\n([\s\S]*)\Z")


@dataclass(frozen=True)
class Scene:
    rows: tuple[str, ...]
    legend: Mapping[str, str]
    said: str = ""
    hp: int = 0
    most_hp: int = 0
    holds: str = ""

    @property
    def here(self) -> tuple[int, int] | None:
        """(row, column) of the agent; None where something hides it"""
        return next(((r, row.index(YOU)) for r, row in enumerate(self.rows) if YOU in row), None)

    def at(self, place: tuple[int, int]) -> str:
        """The symbol there; beyond the window it is a wall."""
        row, column = place
        return self.rows[row][column] if 0 <= row < len(self.rows) and 0 <= column < len(self.rows[row]) else WALLS[0]

    def find(self, symbols: str) -> list[tuple[int, int]]:
        return [(r, c) for r, row in enumerate(self.rows) for c, symbol in enumerate(row) if symbol in symbols]

    @property
    def monsters(self) -> list[tuple[int, int]]:
        """Letters, and the few other symbols that monsters have; the agent itself is none."""
        return [place for place in self.find("".join(self.legend)) if self._is_monster(self.at(place))]

    def _is_monster(self, symbol: str) -> bool:
        return symbol.isalpha() or symbol in ":;&~"

    @property
    def text(self) -> str:
        lines = [f"it says: {self.said}"] if self.said else []
        lines.append(f"hp: {self.hp}/{self.most_hp}")
        if self.holds:
            lines.append(f"holds: {self.holds}")
        lines.append("legend: " + "; ".join(f"{symbol} {meaning}" for symbol, meaning in self.legend.items()))
        return "\n".join([*lines, "map:", *self.rows])


def read(text: str) -> Scene:
    """The inverse of `Scene.text`."""
    match = _TEXT.match(text)
    if match is None:
        raise ValueError(f"not a MiniHack observation: {text!r}")
    said, hp, most, holds, legend, rows = match.groups()
    meanings = {entry[0]: entry[2:] for entry in legend.split("; ") if entry}
    return Scene(tuple(rows.split("\n")), meanings, said or "", int(hp), int(most), holds or "")


def meaning_of(description: str, symbol: str) -> str:
    """The engine's words for a square, in ours."""
    if symbol == YOU:
        return "you"
    if description.startswith("a key"):
        return "key"
    return _MEANINGS.get(description, description.removeprefix("a ").removeprefix("an ")) or "unknown"
