"""A solver that plays a shortest solution, by exhaustive reverse play.

Undoing a step walks back, with or without pulling the box that was pushed. Breadth-first search from all solved positions
reaches exactly the solvable ones; a 6x6 room with two boxes has about 1,500 positions. All others are deadlocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import permutations
from math import inf

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.worlds.sokoban.world import DIRECTIONS, Layout, Position, Room, bits, read_position

KEPT = 128
"""cached rooms: the members of a group play in the same room"""


@lru_cache(maxsize=KEPT)
def moves_left(layout: Layout) -> Mapping[Position, int]:
    """position -> fewest moves to a solved one; unsolvable positions are missing."""
    beside = Room(layout).beside
    back = [(beside[_OPPOSITE[way]], beside[way]) for way in DIRECTIONS]
    reached = {Position(cell, layout.targets): 0 for cell in layout.floor if not layout.targets >> cell & 1}
    edge, moves = list(reached), 0
    while edge:
        moves += 1
        further = []
        for agent, boxes in edge:
            for behind, ahead in back:
                came_from = behind[agent]
                if came_from < 0 or boxes >> came_from & 1:
                    continue
                walked = Position(came_from, boxes)
                if walked not in reached:
                    reached[walked] = moves
                    further.append(walked)
                box = ahead[agent]
                if box >= 0 and boxes >> box & 1:
                    pulled = Position(came_from, boxes ^ 1 << box | 1 << agent)
                    if pulled not in reached:
                        reached[pulled] = moves
                        further.append(pulled)
        edge = further
    return reached


def best_moves(layout: Layout, at: Position) -> list[str]:
    """The directions that begin a shortest solution; none in a deadlock or a solved position."""
    left, room = moves_left(layout), Room(layout)
    here = left.get(at)
    if not here:
        return []
    led = {way: room.move(at, way) for way in DIRECTIONS}
    return [way for way, there in led.items() if there is not None and left.get(there) == here - 1]


def is_deadlocked(layout: Layout, at: Position) -> bool:
    return at not in moves_left(layout)


def pushes_left(layout: Layout, boxes: int) -> float:
    """A lower bound: the smallest sum of box-target distances over all assignments, ignoring other boxes and the agent's
    position. Infinite if some box cannot reach a target."""
    distances = _distances(layout)
    targets = list(bits(layout.targets))
    shared = permutations(targets, boxes.bit_count())
    return min(sum(distances[target].get(box, inf) for box, target in zip(bits(boxes), some, strict=True)) for some in shared)


@lru_cache(maxsize=KEPT)
def _distances(layout: Layout) -> Mapping[int, Mapping[int, int]]:
    """target -> cell -> pushes to move a single box from the cell to the target"""
    beside = Room(layout).beside
    found: dict[int, dict[int, int]] = {}
    for target in bits(layout.targets):
        reached, edge = {target: 0}, [target]
        while edge:
            further = []
            for cell in edge:
                for way in DIRECTIONS:
                    before = beside[_OPPOSITE[way]][cell]
                    if before >= 0 and before not in reached and beside[_OPPOSITE[way]][before] >= 0:
                        reached[before] = reached[cell] + 1
                        further.append(before)
            edge = further
        found[target] = reached
    return found


_OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}


class Solver(ByReading):
    """Acts on the observation alone, so it can advise in any episode. Of several best moves it takes the first in the order up,
    down, left, right. In a deadlock it takes the first admissible action."""

    def __init__(self, task: Task | None = None) -> None:
        pass

    def act(self, observation: Observation) -> str:
        best = best_moves(*read_position(observation.text))
        return best[0] if best else (observation.actions or ("up",))[0]
