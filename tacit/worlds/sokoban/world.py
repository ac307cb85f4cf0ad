"""Sokoban: push every box onto a target. Boxes cannot be pulled, so a wrong push may lose the room.

    actions   up, down, left, right: step, pushing a box that is in the way
    success   every box is on a target
    refused   a step into a wall, a push against a wall or another box, and anything that is no direction
    score     the share of boxes on targets
    reward    gym-sokoban's, for `outcome = steps`: −0.1 per action, +1 for a box pushed onto a target, −1 for one pushed off
              it, +10 for the last one

As in gym-sokoban, an episode continues after a deadlock; the failure reason reports it. An observation is the room, row by row,
and why the last action was refused, if it was:

    WWWWWW        W wall, A box, C target, @ agent, . floor, as in Complementary RL (appendix C.1)
    W..C.W        * box on a target, + agent on a target
    W.A@.W
    WW...W        cells are numbered row by row; boxes and targets are bit sets over cells
    W....W
    WWWWWW
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition

WALL, BOX, TARGET, AGENT, FLOOR, PLACED, AGENT_ON_TARGET = "W", "A", "C", "@", ".", "*", "+"
DIRECTIONS: Mapping[str, tuple[int, int]] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
LARGEST, MOST_BOXES = 30, 10
"""limits on rows or columns and on boxes"""
STEP_REWARD, BOX_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0


class Position(NamedTuple):
    agent: int
    boxes: int


class Layout(NamedTuple):
    """The walls and targets of a room."""

    height: int
    width: int
    walls: int
    targets: int

    @property
    def floor(self) -> tuple[int, ...]:
        return tuple(cell for cell in range(self.height * self.width) if not self.walls >> cell & 1)

    def beside(self, cell: int, direction: str) -> int:
        """The next cell in a direction; -1 for a wall or the border."""
        down, right = DIRECTIONS[direction]
        row, column = cell // self.width + down, cell % self.width + right
        if not (0 <= row < self.height and 0 <= column < self.width):
            return -1
        there = row * self.width + column
        return -1 if self.walls >> there & 1 else there


class Room:
    """A layout with cached neighbors and symbols."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @cached_property
    def beside(self) -> Mapping[str, tuple[int, ...]]:
        """direction -> for each cell the next one, or -1"""
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
        """The position after a step, pushing a box that is in the way; None if a wall or a second box blocks it."""
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

    def is_solved(self, at: Position) -> bool:
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
    """The indices of the set bits, lowest first."""
    while cells:
        lowest = cells & -cells
        yield lowest.bit_length() - 1
        cells ^= lowest


def read_rows(rows: Sequence[str], named: str = "a room") -> tuple[Layout, Position]:
    """The inverse of `Room.rows`. Raises TacitError if the room is not playable."""
    symbols = WALL + BOX + TARGET + AGENT + FLOOR + PLACED + AGENT_ON_TARGET
    shape = (len(rows), len(rows[0]) if rows else 0)
    if not (1 <= shape[0] <= LARGEST and 1 <= shape[1] <= LARGEST) or any(len(row) != shape[1] for row in rows):
        raise TacitError(f"{named} must be rows of equal length, at most {LARGEST} by {LARGEST}, got {list(rows)}.")
    text = "".join(rows)
    unknown = sorted(set(text) - set(symbols))
    if unknown:
        raise TacitError(f"{named} has symbols that mean nothing here: {' '.join(unknown)}; known are {' '.join(symbols)}.")

    def where(*wanted: str) -> int:
        return sum(1 << cell for cell, symbol in enumerate(text) if symbol in wanted)

    boxes, targets, agents = where(BOX, PLACED), where(TARGET, PLACED, AGENT_ON_TARGET), where(AGENT, AGENT_ON_TARGET)
    if agents.bit_count() != 1 or boxes.bit_count() != targets.bit_count() or not 1 <= boxes.bit_count() <= MOST_BOXES:
        raise TacitError(
            f"{named} needs one agent and 1 to {MOST_BOXES} boxes with as many targets, got {agents.bit_count()} agents, "
            f"{boxes.bit_count()} boxes, {targets.bit_count()} targets."
        )
    return Layout(*shape, where(WALL), targets), Position(agents.bit_length() - 1, boxes)


MAX_STEPS = 30
"""as in Complementary RL"""
NO_DIRECTION = "not an action"


class ParsedObservation(NamedTuple):
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
            raise TacitError(f"task {task.id!r} is not a Sokoban task: its data needs `room`, a list of rows.")
        layout, self._at = read_rows(rows, f"the room of task {task.id!r}")
        self._room = _room(layout)
        if self._room.is_solved(self._at):
            raise TacitError(f"the room of task {task.id!r} is solved already.")
        return self._observe()

    def step(self, action: str) -> Transition:
        direction = parse_direction(action)
        if direction is None:
            return self._refuse(NO_DIRECTION)
        there = self._room.move(self._at, direction)
        if there is None:
            ahead = self._room.beside[direction][self._at.agent]
            return self._refuse(f"a wall is {direction}" if ahead < 0 else f"the box cannot be pushed {direction}")
        moved = self._room.placed(there) - self._room.placed(self._at)
        self._at = there
        solved = self._room.is_solved(there)
        reward = STEP_REWARD + BOX_REWARD * moved + SOLVED_REWARD * solved
        return Transition(self._observe(), done=solved, success=solved, score=self._score(), reward=reward)

    def close(self) -> None:
        pass

    def _refuse(self, why: str) -> Transition:
        return Transition(self._observe(why), effective=False, score=self._score(), reward=STEP_REWARD)

    def _score(self) -> float:
        return self._room.placed(self._at) / self._at.boxes.bit_count()

    def _observe(self, refused: str = "") -> Observation:
        possible = tuple(way for way in DIRECTIONS if self._room.move(self._at, way) is not None)
        return Observation(format_observation(self._room.rows(self._at), refused), possible)


def parse_direction(action: str) -> str | None:
    """The direction; None if the action is none."""
    word = action.strip().lower()
    return word if word in DIRECTIONS else None


def format_observation(rows: list[str], refused: str = "") -> str:
    return "\n".join((*rows, f"refused: {refused}")) if refused else "\n".join(rows)


def parse_observation(text: str) -> ParsedObservation:
    """The inverse of `format_observation`."""
    rows, _, refused = text.partition("\nrefused: ")
    return ParsedObservation(tuple(rows.split("\n")), refused)


def read_position(text: str) -> tuple[Layout, Position]:
    """The layout and position of an observation."""
    return read_rows(parse_observation(text).rows, "an observation")


@lru_cache(maxsize=256)
def _room(layout: Layout) -> Room:
    """Cached: rooms are immutable."""
    return Room(layout)
