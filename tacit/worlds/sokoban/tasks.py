"""Solvable 6x6 rooms from a seed, and Boxoban's levels, from $BOXOBAN_LEVELS.

A digest of walls and targets, equal for all eight rotations and reflections, decides the split, so no two splits share a room.
Since there are few rooms of this size, pretraining corpora use separate training rooms: seeds from DERIVED_SEEDS on draw from a
seventh of them, smaller seeds from the rest.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from random import Random

from tacit.core.errors import TacitError, check_split_and_count
from tacit.core.tasks import parse_panels, take_distinct
from tacit.core.types import Task
from tacit.worlds.sokoban.skills import moves_left
from tacit.worlds.sokoban.world import Layout, read_rows, split_rows

NAME = "sokoban"
BOXOBAN = {f"boxoban_{part}": f"unfiltered/{part}" for part in ("train", "valid", "test")}  # split -> directory of level files
BOXOBAN |= {"boxoban_medium_train": "medium/train", "boxoban_medium_valid": "medium/valid", "boxoban_hard": "hard"}
GENERATED = ("train", "test", "hard")
SPLITS = (*GENERATED, *BOXOBAN)
SIZES = {"boxoban_test": 1000, "boxoban_hard": 3332}
BOXOBAN_VARIABLE = "BOXOBAN_LEVELS"
FAMILIES, MANY = {1: "one_box", 2: "two_boxes"}, "many_boxes"
SIZE = 6
WALLED = 0.3  # share of the inner cells that are walls
MOVES = {1: range(3, 17), 2: range(5, 21)}
HARD_MOVES = range(14, 25)
SHARES = {"train": range(12), "corpus": range(12, 14), "test": range(14, 17), "hard": range(17, 20)}  # twentieths of all rooms
DERIVED_SEEDS = 1 << 32  # seeds from here on are derived by corpora, not set by users
GOAL = "Push every box onto a target."


def tasks(split: str, count: int, seed: int) -> list[Task]:
    """`count` different rooms of the split; a larger count begins with the same rooms."""
    check_split_and_count(NAME, SPLITS, split, count)
    if split in BOXOBAN:
        return _draw_levels(split, count, seed)
    shares = SHARES["corpus" if split == "train" and seed >= DERIVED_SEEDS else split]
    rng = Random(f"{NAME}/{split}/{seed}")

    def draw() -> Iterator[Task]:
        while True:
            boxes = 2 if split == "hard" else rng.choice((1, 2))
            moves = HARD_MOVES if split == "hard" else MOVES[boxes]
            yield make_task(draw_room(rng, boxes, moves, shares), split, seed)

    return take_distinct(draw(), count)


def make_task(rows: Sequence[str], split: str = "own", seed: int = 0) -> Task:
    _, start = read_rows(rows)
    mark = hashlib.sha256("\n".join(rows).encode()).hexdigest()[:12]
    family = FAMILIES.get(start.boxes.bit_count(), MANY)
    return Task(NAME, f"{NAME}/{split}/{family}-{mark}", family, split, seed, GOAL, {"room": list(rows)})


LEVEL_SYMBOLS = str.maketrans("# $.", "W.AC")
"""translates symbols of Boxoban and similar collections; the other symbols are equal"""


def read_levels(path: Path) -> list[list[str]]:
    """The rooms of a level file, separated by `;` lines or empty lines. Short rows are padded with floor."""
    lines = [line.rstrip() for line in path.read_text(encoding="utf-8").splitlines()]
    levels = [list(rows) for between, rows in groupby(lines, lambda line: not line or line.startswith(";")) if not between]
    rooms = []
    for number, rows in enumerate(levels, start=1):
        width = max(map(len, rows))
        rooms.append([row.ljust(width).translate(LEVEL_SYMBOLS) for row in rows])
        read_rows(rooms[-1], f"level {number} of {path}")
    return rooms


def _draw_levels(split: str, count: int, seed: int) -> list[Task]:
    """`count` levels in a seeded order. Reads only as many files as needed."""
    root = os.environ.get(BOXOBAN_VARIABLE, "")
    place = Path(root).expanduser() / BOXOBAN[split]
    files = sorted(place.glob("*.txt")) if root else []
    if not files:
        where = f"{str(place)!r} has no .txt files" if root else "it is not set"
        raise TacitError(
            f"{split!r} needs Boxoban's levels: set {BOXOBAN_VARIABLE} to the directory of the repository "
            f"google-deepmind/boxoban-levels; {where}."
        )
    rng = Random(f"{NAME}/{split}/{seed}")
    rng.shuffle(files)
    drawn_levels: list[Task] = []
    for file in files:
        levels = list(enumerate(read_levels(file)))
        for number, rows in rng.sample(levels, len(levels)):
            drawn_levels.append(replace(make_task(rows, split, seed), id=f"{NAME}/{split}/{file.stem}-{number}"))
            if len(drawn_levels) >= count:
                return drawn_levels[:count]
    raise TacitError(f"{count} levels of {split!r} were requested; {str(place)!r} has {len(drawn_levels)}.")


def share_of(layout: Layout) -> int:
    """A number from 0 to 19, equal for all rotations and reflections: a digest of the room's walls and targets."""
    rows, seen = split_rows(layout.empty, layout.width), []
    for _ in range(4):
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]
        seen += ["/".join(rows), "/".join(row[::-1] for row in rows)]
    return zlib.crc32(min(seen).encode()) % 20


def draw_room(rng: Random, boxes: int, moves: range, shares: range) -> list[str]:
    """A room whose `share_of` is in `shares`, with a start position whose shortest solution has a length in `moves`."""
    inside = [row * SIZE + column for row in range(1, SIZE - 1) for column in range(1, SIZE - 1)]
    around = sum(1 << cell for cell in range(SIZE * SIZE) if cell not in inside)
    while True:
        walls = around | sum(1 << cell for cell in inside if rng.random() < WALLED)
        floor = [cell for cell in inside if not walls >> cell & 1]
        if len(floor) < 3 * boxes:
            continue
        layout = Layout(SIZE, SIZE, walls, sum(1 << cell for cell in rng.sample(floor, boxes)))
        if share_of(layout) not in shares:
            continue
        reached, edge = {layout.floor[0]}, [layout.floor[0]]
        for cell in edge:
            beside = {ahead[cell] for ahead in layout.beside.values()} - {-1} - reached
            reached |= beside
            edge += beside
        if len(reached) < len(layout.floor):  # not connected
            continue
        starts = [at for at, left in moves_left(layout).items() if left in moves and not at.boxes & layout.targets]
        if starts:
            return layout.rows(rng.choice(sorted(starts)))


PANELS = parse_panels("""
train  16:782b299c4ccce693 128:438b7e1254cc9612 256:5363c905911aedf0 512:7ec5d9c88225b887 1024:150dd604ff7a3e09
test   16:7cb35d0b1431c918 128:98d939cd8b817291 256:d7a69dc900177fbc 512:8a5a2075681273e8 1024:f0b4352f45b22758
hard   16:6a04cc66c7303021 128:0359b607f119b994 256:89ebbcf4587148a8 512:5ead9a2a8366a082 1024:566cf67d71c0006b
""")
