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

from functools import lru_cache
from typing import NamedTuple

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.environments.sokoban.room import DIRECTIONS, Layout, Position, Room, read_rows

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
