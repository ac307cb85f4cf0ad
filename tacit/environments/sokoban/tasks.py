"""Rooms from a seed, made by reverse play, so that all can be solved; and no two splits share a room, not even turned or
mirrored.

A room is 6 by 6 with walls around, up to five walls inside, its floor in one piece, and one or two targets. Playing
backwards from the solved room reaches every position that can be solved; the start is one of them, no box on a target, of a
number of moves that is drawn first, so that short and long ones are as likely. A digest of walls and targets, in the first
of their eight reflections, decides the split:

    train    seven tenths of all rooms: one box (3 to 16 moves) or two (5 to 20)
    test     about a sixth, the same
    hard     about a sixth: two boxes, 14 to 24 moves
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from random import Random

from tacit.core.errors import TacitError, unknown
from tacit.core.types import Task
from tacit.environments.sokoban.room import DIRECTIONS, Layout, Position, Room, read_rows
from tacit.environments.sokoban.solver import moves_left

NAME = "sokoban"
SPLITS = ("train", "test", "hard")
FAMILIES = {1: "one_box", 2: "two_boxes"}
SIZE = 6
MOST_WALLS = 5
MOVES = {1: range(3, 17), 2: range(5, 21)}
HARD_MOVES = range(14, 25)
GOAL = "Push every box onto a target."


def tasks(split: str, count: int, seed: int) -> list[Task]:
    """`count` different rooms of the split; a larger count begins with the same ones."""
    if split not in SPLITS:
        raise unknown(f"split of world {NAME!r}", split, SPLITS)
    if count < 0:
        raise TacitError(f"cannot make {count} tasks; ask for zero or more.")
    rng = Random(f"{NAME}/{split}/{seed}")
    found: dict[str, Task] = {}
    while len(found) < count:
        boxes = 2 if split == "hard" else rng.choice((1, 2))
        layout = draw_layout(rng, boxes, split)
        start = draw_start(rng, layout, HARD_MOVES if split == "hard" else MOVES[boxes])
        if start is not None:
            task = make_task(Room(layout).rows(start), split, seed)
            found.setdefault(task.id, task)
    return list(found.values())


def make_task(rows: Sequence[str], split: str = "own", seed: int = 0) -> Task:
    """Any room as a task."""
    _, start = read_rows(rows)
    mark = hashlib.sha256("\n".join(rows).encode()).hexdigest()[:12]
    family = FAMILIES[start.boxes.bit_count()]
    return Task(NAME, f"{NAME}/{split}/{family}-{mark}", family, split, seed, GOAL, {"room": list(rows)})


def split_of(layout: Layout) -> str:
    """The only split in which this room appears, whichever way it is turned."""
    share = zlib.crc32(min(_reflections(layout)).encode()) % 20
    return "test" if share in (14, 15, 16) else "hard" if share > 16 else "train"


def draw_layout(rng: Random, boxes: int, split: str) -> Layout:
    """A room of the split whose floor is in one piece."""
    inside = [row * SIZE + column for row in range(1, SIZE - 1) for column in range(1, SIZE - 1)]
    around = sum(1 << cell for cell in range(SIZE * SIZE) if cell not in inside)
    while True:
        walls = around | sum(1 << cell for cell in rng.sample(inside, rng.randint(0, MOST_WALLS)))
        floor = [cell for cell in inside if not walls >> cell & 1]
        layout = Layout(SIZE, SIZE, walls, sum(1 << cell for cell in rng.sample(floor, boxes)))
        if split_of(layout) == split and _in_one_piece(layout):
            return layout


def draw_start(rng: Random, layout: Layout, moves: range) -> Position | None:
    """A position of that many moves with no box on a target, None where the room has none."""
    by_moves: dict[int, list[Position]] = {}
    for position, left in moves_left(layout).items():
        if left in moves and not position.boxes & layout.targets:
            by_moves.setdefault(left, []).append(position)
    return rng.choice(sorted(by_moves[rng.choice(sorted(by_moves))])) if by_moves else None


def _in_one_piece(layout: Layout) -> bool:
    floor = layout.floor
    reached, edge = {floor[0]}, [floor[0]]
    while edge:
        cell = edge.pop()
        beside = {layout.beside(cell, way) for way in DIRECTIONS} - {-1} - reached
        reached |= beside
        edge += beside
    return len(reached) == len(floor)


def _reflections(layout: Layout) -> Iterator[str]:
    """The room's walls and targets in all eight ways to turn and mirror it."""
    cells = range(layout.height * layout.width)
    text = "".join("W" if layout.walls >> cell & 1 else "C" if layout.targets >> cell & 1 else "." for cell in cells)
    rows = [text[start : start + layout.width] for start in range(0, len(text), layout.width)]
    for _ in range(4):
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]
        yield "/".join(rows)
        yield "/".join(row[::-1] for row in rows)
