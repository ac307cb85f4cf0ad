"""A room of Sokoban on plain integers: its walls and targets, where the boxes and the agent are, and how it is written.

WWWWWW        W wall, A box, C target, @ agent, . floor, as Complementary RL has them (appendix C.1);
W..C.W        * a box on a target and + the agent on a target, as everybody has them
W.A@.W
WW...W        cells are numbered row by row; boxes and targets are sets of bits, one for each cell
W....W
WWWWWW
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from tacit.core.errors import TacitError

WALL, BOX, TARGET, AGENT, FLOOR, PLACED, AGENT_ON_TARGET = "W", "A", "C", "@", ".", "*", "+"
DIRECTIONS: Mapping[str, tuple[int, int]] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
LARGEST, MOST_BOXES = 8, 2
"""rows or columns, and boxes, for which every position can be looked at"""


class Position(NamedTuple):
    agent: int
    boxes: int


class Layout(NamedTuple):
    """What never moves."""

    height: int
    width: int
    walls: int
    targets: int

    @property
    def floor(self) -> tuple[int, ...]:
        return tuple(cell for cell in range(self.height * self.width) if not self.walls >> cell & 1)

    def beside(self, cell: int, direction: str) -> int:
        """The next cell that way, -1 where there is a wall or the end of the room."""
        down, right = DIRECTIONS[direction]
        row, column = cell // self.width + down, cell % self.width + right
        if not (0 <= row < self.height and 0 <= column < self.width):
            return -1
        there = row * self.width + column
        return -1 if self.walls >> there & 1 else there


class Room:
    """A layout with what is often asked of it kept at hand."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @cached_property
    def beside(self) -> Mapping[str, tuple[int, ...]]:
        """direction -> for each cell the next one that way, or -1"""
        cells = range(self.layout.height * self.layout.width)
        return {way: tuple(self.layout.beside(cell, way) for cell in cells) for way in DIRECTIONS}

    @cached_property
    def _empty(self) -> list[str]:
        layout = self.layout
        return [
            WALL if layout.walls >> cell & 1 else TARGET if layout.targets >> cell & 1 else FLOOR
            for cell in range(layout.height * layout.width)
        ]

    def move(self, at: Position, direction: str) -> Position | None:
        """Where a step leads, pushing a box that is in the way; None where a wall or a second box stops it."""
        beside = self.beside[direction]
        agent = beside[at.agent]
        if agent < 0:
            return None
        if not at.boxes >> agent & 1:
            return Position(agent, at.boxes)
        behind = beside[agent]
        if behind < 0 or at.boxes >> behind & 1:
            return None
        return Position(agent, at.boxes ^ 1 << agent | 1 << behind)

    def solved(self, at: Position) -> bool:
        return at.boxes == self.layout.targets

    def placed(self, at: Position) -> int:
        return (at.boxes & self.layout.targets).bit_count()

    def rows(self, at: Position) -> list[str]:
        cells = self._empty.copy()
        for box in bits(at.boxes):
            cells[box] = PLACED if cells[box] == TARGET else BOX
        cells[at.agent] = AGENT_ON_TARGET if cells[at.agent] == TARGET else AGENT
        text, width = "".join(cells), self.layout.width
        return [text[start : start + width] for start in range(0, len(text), width)]


def bits(cells: int) -> Iterable[int]:
    """The numbers of the bits that are set, lowest first."""
    while cells:
        lowest = cells & -cells
        yield lowest.bit_length() - 1
        cells ^= lowest


def read_rows(rows: Sequence[str], named: str = "a room") -> tuple[Layout, Position]:
    """The inverse of `Room.rows`. Raises TacitError where it is no room that can be played."""
    symbols = WALL + BOX + TARGET + AGENT + FLOOR + PLACED + AGENT_ON_TARGET
    shape = (len(rows), len(rows[0]) if rows else 0)
    if not (1 <= shape[0] <= LARGEST and 1 <= shape[1] <= LARGEST) or any(len(row) != shape[1] for row in rows):
        raise TacitError(f"{named} must be rows of equal length, at most {LARGEST} by {LARGEST}, got {list(rows)}.")
    text = "".join(rows)
    strange = sorted(set(text) - set(symbols))
    if strange:
        raise TacitError(f"{named} has symbols that mean nothing here: {' '.join(strange)}; known are {' '.join(symbols)}.")

    def where(*wanted: str) -> int:
        return sum(1 << cell for cell, symbol in enumerate(text) if symbol in wanted)

    boxes, targets, agents = where(BOX, PLACED), where(TARGET, PLACED, AGENT_ON_TARGET), where(AGENT, AGENT_ON_TARGET)
    if agents.bit_count() != 1 or boxes.bit_count() != targets.bit_count() or not 1 <= boxes.bit_count() <= MOST_BOXES:
        raise TacitError(
            f"{named} needs one agent and one or two boxes with as many targets, got {agents.bit_count()} agents, "
            f"{boxes.bit_count()} boxes, {targets.bit_count()} targets."
        )
    return Layout(*shape, where(WALL), targets), Position(agents.bit_length() - 1, boxes)
