"""Sokoban: push every box onto a target. A box can be pushed and never pulled, so a wrong push may be the end of it.

    actions   up, down, left, right: a step that way, pushing the box that stands there
    success   every box is on a target
    refused   a step into a wall, a push against a wall or another box, and what is no direction; nothing moves then
    score     the share of boxes that are on a target

An episode goes on after a deadlock, as in the benchmarks (gym-sokoban and those built on it); what became of it is said by
the label of a failure. Observations are the room, row by row (`room.py` has the symbols), and why the last action was
refused where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition

# A room of Sokoban on plain integers: its walls and targets, where the boxes and the agent are, and how it is written.
#
# WWWWWW        W wall, A box, C target, @ agent, . floor, as Complementary RL has them (appendix C.1);
# W..C.W        * a box on a target and + the agent on a target, as everybody has them
# W.A@.W
# WW...W        cells are numbered row by row; boxes and targets are sets of bits, one for each cell
# W....W
# WWWWWW

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


MAX_STEPS = 30
"""Complementary RL's most turns in the mixture of tasks that Sokoban is one of"""
NO_DIRECTION = "not an action"


class Shown(NamedTuple):
    """An observation's text, read back."""

    rows: tuple[str, ...]
    refused: str


class SokobanWorld:
    """One room at a time; see the module for the rules."""

    def __init__(self) -> None:
        self._room = Room(Layout(1, 1, 0, 0))
        self._at = Position(0, 0)

    def reset(self, task: Task) -> Observation:
        rows = task.data.get("room")
        if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
            raise TacitError(f"task {task.id!r} is no room of Sokoban: its data needs `room`, a list of rows.")
        layout, self._at = read_rows(rows, f"the room of task {task.id!r}")
        self._room = _room(layout)
        if self._room.solved(self._at):
            raise TacitError(f"the room of task {task.id!r} is solved already.")
        return self._observe()

    def step(self, action: str) -> Transition:
        direction = parse(action)
        if direction is None:
            return self._refuse(NO_DIRECTION)
        there = self._room.move(self._at, direction)
        if there is None:
            ahead = self._room.beside[direction][self._at.agent]
            return self._refuse(f"a wall is {direction}" if ahead < 0 else f"the box cannot be pushed {direction}")
        self._at = there
        solved = self._room.solved(there)
        return Transition(self._observe(), done=solved, success=solved, score=self._score())

    def close(self) -> None:
        pass

    def _refuse(self, why: str) -> Transition:
        return Transition(self._observe(why), effective=False, score=self._score())

    def _score(self) -> float:
        return self._room.placed(self._at) / self._at.boxes.bit_count()

    def _observe(self, refused: str = "") -> Observation:
        possible = tuple(way for way in DIRECTIONS if self._room.move(self._at, way) is not None)
        return Observation(show(self._room.rows(self._at), refused), possible)


def parse(action: str) -> str | None:
    """The direction, None where it is none."""
    word = action.strip().lower()
    return word if word in DIRECTIONS else None


def show(rows: list[str], refused: str = "") -> str:
    return "\n".join((*rows, f"refused: {refused}")) if refused else "\n".join(rows)


def read(text: str) -> Shown:
    """The inverse of `show`."""
    rows, _, refused = text.partition("\nrefused: ")
    return Shown(tuple(rows.split("\n")), refused)


def read_position(text: str) -> tuple[Layout, Position]:
    """What an observation shows, as numbers."""
    return read_rows(read(text).rows, "an observation")


@lru_cache(maxsize=256)
def _room(layout: Layout) -> Room:
    """Rooms share what is worked out of a layout, which never changes."""
    return Room(layout)
