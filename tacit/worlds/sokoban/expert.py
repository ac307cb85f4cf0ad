"""A solver: always a move of a shortest solution."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import permutations
from math import inf

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.worlds.sokoban.world import DIRECTIONS, Layout, Position, Room, bits, read_position

# Reverse play: every position from which a room can be solved, and how many moves that takes at least.
#
# A step is undone by walking back, with or without pulling along the box that the agent has just pushed. Breadth first from
# all solved positions, this reaches exactly those that can be solved; a room of 6 by 6 with two boxes has at most some 1,500
# positions, so all of them are looked at. What is not among them is a deadlock.
#
# The distance of a box is the pushes it takes to a target in a room without other boxes, the agent being wherever it needs to
# be; the least sum over ways to share the targets out is a lower bound of the pushes that are left.

KEPT = 128
"""rooms whose positions are kept: the members of a group play in the same"""


@lru_cache(maxsize=KEPT)
def moves_left(layout: Layout) -> Mapping[Position, int]:
    """position -> the fewest moves to a solved one; a position that is not there cannot be solved."""
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
    """The directions that begin a shortest solution; none in a deadlock, or where it is solved."""
    left, room = moves_left(layout), Room(layout)
    here = left.get(at)
    if not here:
        return []
    led = {way: room.move(at, way) for way in DIRECTIONS}
    return [way for way, there in led.items() if there is not None and left.get(there) == here - 1]


def deadlocked(layout: Layout, at: Position) -> bool:
    return at not in moves_left(layout)


def pushes_left(layout: Layout, boxes: int) -> float:
    """A lower bound; infinite where some box can reach no target."""
    distances = _distances(layout)
    targets = list(bits(layout.targets))
    shared = permutations(targets, boxes.bit_count())
    return min(sum(distances[target].get(box, inf) for box, target in zip(bits(boxes), some, strict=True)) for some in shared)


@lru_cache(maxsize=KEPT)
def _distances(layout: Layout) -> Mapping[int, Mapping[int, int]]:
    """target -> cell -> pushes of a box from there"""
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
    """Acts on the observation alone, so it can be asked in the middle of anyone's episode. Of several best moves it takes the
    first in the order up, down, left, right. In a deadlock, where nothing helps, it does what is possible."""

    def __init__(self, task: Task | None = None) -> None:
        pass

    def act(self, observation: Observation) -> str:
        best = best_moves(*read_position(observation.text))
        return best[0] if best else (observation.actions or ("up",))[0]
