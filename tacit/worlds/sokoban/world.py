"""Sokoban: push every box onto a target. Boxes cannot be pulled, so a wrong push may lose the room.

The reward is gym-sokoban's: −0.1 per action, ±1 for a box pushed onto a target or off it, +10 for the last one. As there, an
episode continues after a deadlock. Symbols are those of Complementary RL (appendix C.1). Cells are numbered row by row; boxes
and targets are bit sets over cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from tacit.core.errors import TacitError
from tacit.core.types import ActionStyle, Observation, Task, Transition
from tacit.core.world import Brief, Numbered, World

SYMBOLS = WALL, BOX, TARGET, AGENT, FLOOR, PLACED, AGENT_ON_TARGET = "W", "A", "C", "@", ".", "*", "+"
DIRECTIONS: Mapping[str, tuple[int, int]] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
LARGEST, MAX_BOXES = 30, 10  # limits on rows or columns and on boxes
STEP_REWARD, BOX_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0
MAX_STEPS = 30  # as in Complementary RL


class Position(NamedTuple):
    agent: int
    boxes: int


@dataclass(frozen=True)
class Layout:
    height: int
    width: int
    walls: int
    targets: int

    @cached_property
    def empty(self) -> list[str]:
        """the symbol of each cell, without boxes and agent"""
        cells = range(self.height * self.width)
        return [WALL if self.walls >> cell & 1 else TARGET if self.targets >> cell & 1 else FLOOR for cell in cells]

    @cached_property
    def floor(self) -> tuple[int, ...]:
        return tuple(cell for cell, symbol in enumerate(self.empty) if symbol != WALL)

    @cached_property
    def beside(self) -> Mapping[str, tuple[int, ...]]:
        """direction -> for each cell, the next cell; -1 for a wall or the border"""
        neighbors = {way: [-1] * len(self.empty) for way in DIRECTIONS}
        for way, (down, right) in DIRECTIONS.items():
            for cell in range(len(self.empty)):
                row, column = cell // self.width + down, cell % self.width + right
                there = row * self.width + column
                if 0 <= row < self.height and 0 <= column < self.width and not self.walls >> there & 1:
                    neighbors[way][cell] = there
        return {way: tuple(cells) for way, cells in neighbors.items()}

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

    def placed(self, at: Position) -> int:
        return (at.boxes & self.targets).bit_count()

    def rows(self, at: Position) -> list[str]:
        cells = self.empty.copy()
        for box in bits(at.boxes):
            cells[box] = PLACED if cells[box] == TARGET else BOX
        cells[at.agent] = AGENT_ON_TARGET if cells[at.agent] == TARGET else AGENT
        return split_rows(cells, self.width)


_layout = lru_cache(maxsize=256)(Layout)
"""cached, since members of a group share a room, and a layout caches its derived data"""


def split_rows(cells: Sequence[str], width: int) -> list[str]:
    return ["".join(cells[start : start + width]) for start in range(0, len(cells), width)]


def bits(cells: int) -> Iterable[int]:
    """The indices of the set bits, lowest first."""
    while cells:
        lowest = cells & -cells
        yield lowest.bit_length() - 1
        cells ^= lowest


def read_rows(rows: Sequence[str], named: str = "a room") -> tuple[Layout, Position]:
    """The inverse of `Layout.rows`. Raises TacitError if the room is not playable."""
    shape = (len(rows), len(rows[0]) if rows else 0)
    if not (1 <= shape[0] <= LARGEST and 1 <= shape[1] <= LARGEST) or any(len(row) != shape[1] for row in rows):
        raise TacitError(f"{named} must be rows of equal length, at most {LARGEST} by {LARGEST}, got {list(rows)}.")
    text = "".join(rows)
    unknown = sorted(set(text) - set(SYMBOLS))
    if unknown:
        raise TacitError(f"{named} has unknown symbols: {' '.join(unknown)}; known are {' '.join(SYMBOLS)}.")

    def where(*wanted: str) -> int:
        return sum(1 << cell for cell, symbol in enumerate(text) if symbol in wanted)

    boxes, targets, agents = where(BOX, PLACED), where(TARGET, PLACED, AGENT_ON_TARGET), where(AGENT, AGENT_ON_TARGET)
    if agents.bit_count() != 1 or boxes.bit_count() != targets.bit_count() or not 1 <= boxes.bit_count() <= MAX_BOXES:
        raise TacitError(
            f"{named} needs one agent and 1 to {MAX_BOXES} boxes with as many targets, got {agents.bit_count()} agents, "
            f"{boxes.bit_count()} boxes, {targets.bit_count()} targets."
        )
    return _layout(*shape, where(WALL), targets), Position(agents.bit_length() - 1, boxes)


class SokobanWorld(World):
    def reset(self, task: Task) -> Observation:
        rows = task.data.get("room")
        if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
            raise TacitError(f"task {task.id!r} is not a Sokoban task: its data needs `room`, a list of rows.")
        self._layout, self._at = read_rows(rows, f"the room of task {task.id!r}")
        if self._at.boxes == self._layout.targets:
            raise TacitError(f"the room of task {task.id!r} is already solved.")
        return self._observe()

    def step(self, action: str) -> Transition:
        direction, layout = parse_direction(action), self._layout
        if direction is None:
            return self._refuse("not an action")
        there = layout.move(self._at, direction)
        if there is None:
            ahead = layout.beside[direction][self._at.agent]
            return self._refuse(f"a wall is {direction}" if ahead < 0 else f"the box cannot be pushed {direction}")
        moved, solved = layout.placed(there) - layout.placed(self._at), there.boxes == layout.targets
        self._at = there
        reward = STEP_REWARD + BOX_REWARD * moved + SOLVED_REWARD * solved
        score = layout.placed(there) / there.boxes.bit_count()
        return Transition(self._observe(), done=solved, success=solved, score=score, reward=reward)

    def _refuse(self, why: str) -> Transition:
        score = self._layout.placed(self._at) / self._at.boxes.bit_count()
        return Transition(self._observe(why), effective=False, score=score, reward=STEP_REWARD)

    def _observe(self, refused: str = "") -> Observation:
        possible = tuple(way for way in DIRECTIONS if self._layout.move(self._at, way) is not None)
        return Observation(format_observation(self._layout.rows(self._at), refused), possible)


def parse_direction(action: str) -> str | None:
    word = action.strip().lower()
    return word if word in DIRECTIONS else None


def format_observation(rows: list[str], refused: str = "") -> str:
    return "\n".join((*rows, f"refused: {refused}")) if refused else "\n".join(rows)


class ParsedObservation(NamedTuple):
    rows: tuple[str, ...]
    refused: str


def parse_observation(text: str) -> ParsedObservation:
    rows, _, refused = text.partition("\nrefused: ")
    return ParsedObservation(tuple(rows.split("\n")), refused)


def read_position(text: str) -> tuple[Layout, Position]:
    return read_rows(parse_observation(text).rows, "an observation")


RULES = """You are playing Sokoban. The room is shown row by row, one symbol for each cell:
W wall, . floor, A box, C target, @ you, * box on a target, + you on a target
Each turn, go one cell up, down, left or right. Going towards a box pushes it, if the cell behind it is free.
A box cannot be pulled, nor two be pushed at once. A box that is pushed into a corner stays there."""


class FullWording(Numbered):
    rules, listed = RULES, ", "

    def seen(self, observation: Observation) -> str:
        level = parse_observation(observation.text)
        refused = f"Your last action was refused: {level.refused}.\n" if level.refused else ""
        return refused + "\n".join(level.rows)

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return "Answer with one direction alone."
        return "Think step by step inside <think> </think>, then give one direction inside <action> </action>."


class TerseWording(Brief):
    """`. . C . / . A @ . / W . . . / . . . .`: the rows without the outer walls; `!` means the last action was refused."""

    then, ends, listed = " : ", " :", ", "

    def brief(self, observation: Observation) -> str:
        level = parse_observation(observation.text)
        rows = level.rows
        around = rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)
        inner = [row[1:-1] for row in rows[1:-1]] if set(around) == {WALL} else rows
        return " / ".join(" ".join(row) for row in inner) + (" !" if level.refused else "")
