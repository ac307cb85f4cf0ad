"""A solver that plays a shortest solution, by exhaustive reverse play; larger rooms are solved by best-first search.

Undoing a step walks back, with or without pulling the box that was pushed. Breadth-first search from all solved positions
reaches exactly the solvable ones; a 6x6 room with two boxes has about 1,500 positions. All others are deadlocks.

Rooms with more than two boxes or 64 cells have too many positions. There, a best-first search over pushes looks for a solution,
and a deadlock is reported only if some box can no longer reach a target of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from heapq import heappop, heappush
from math import inf
from typing import Any

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.worlds.sokoban.world import DIRECTIONS, Layout, Position, bits, read_position

_OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}
SMALL_BOXES, SMALL_CELLS = 2, 64  # largest rooms for exhaustive search
MOST_EXPANDED, WEIGHT = 30_000, 3.0
KEPT = 128  # cached rooms


@lru_cache(maxsize=KEPT)
def moves_left(layout: Layout) -> Mapping[Position, int]:
    """position -> fewest moves to a solved one; unsolvable positions are missing."""
    beside = layout.beside
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
                found, box = [Position(came_from, boxes)], ahead[agent]
                if box >= 0 and boxes >> box & 1:
                    found.append(Position(came_from, boxes ^ 1 << box | 1 << agent))
                for position in found:
                    if position not in reached:
                        reached[position] = moves
                        further.append(position)
        edge = further
    return reached


def is_small(layout: Layout) -> bool:
    """Whether the exhaustive solver can be used."""
    return layout.targets.bit_count() <= SMALL_BOXES and layout.height * layout.width <= SMALL_CELLS


def best_moves(layout: Layout, at: Position) -> list[str]:
    """The directions that begin a shortest solution (in a large room, the one that was found); none in a deadlock or a solved
    position."""
    if not is_small(layout):
        return list(find_solution(layout, at)[:1])
    left = moves_left(layout)
    led = {way: layout.move(at, way) for way in DIRECTIONS} if left.get(at) else {}
    return [way for way, there in led.items() if there is not None and left.get(there) == left[at] - 1]


def is_deadlocked(layout: Layout, at: Position) -> bool:
    return at not in moves_left(layout) if is_small(layout) else pushes_left(layout, at.boxes) == inf


def pushes_left(layout: Layout, boxes: int) -> float:
    """A lower bound: the smallest sum of box-target distances over all assignments, ignoring other boxes and the agent's
    position. Infinite if some box cannot reach a target."""
    distances, targets = _distances(layout), list(bits(layout.targets))
    cheapest: dict[int, float] = {0: 0.0}  # set of targets in use -> cheapest assignment of the boxes so far
    for box in bits(boxes):
        further: dict[int, float] = {}
        for used, cost in cheapest.items():
            for number, target in enumerate(targets):
                if not used >> number & 1 and box in distances[target]:
                    chosen = used | 1 << number
                    further[chosen] = min(further.get(chosen, inf), cost + distances[target][box])
        cheapest = further
    least = min(cheapest.values(), default=inf)
    return least if least == inf else int(least)


@lru_cache(maxsize=KEPT)
def _distances(layout: Layout) -> Mapping[int, Mapping[int, int]]:
    """target -> cell -> pushes to move a single box from the cell to the target"""
    beside = layout.beside
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


@lru_cache(maxsize=4 * KEPT)
def find_solution(layout: Layout, at: Position) -> tuple[str, ...]:
    """Moves that solve the room; empty if none was found within `MOST_EXPANDED` positions. Best-first search over pushes, by
    the pushes done and a weighted lower bound of the pushes left."""
    beside = layout.beside
    queue: list[tuple[float, int, int, Position, Any]] = [(0.0, 0, 0, at, ())]
    met, number = set[tuple[int, int]](), 0
    while queue and len(met) < MOST_EXPANDED:
        _, _, pushes, (agent, boxes), trail = heappop(queue)
        if boxes == layout.targets:
            parts = []
            while trail:
                trail, moves = trail
                parts.append(moves)
            return tuple(move for moves in reversed(parts) for move in moves)
        ways = _walks(beside, agent, boxes)
        key = (min(ways), boxes)
        if key in met:
            continue
        met.add(key)
        for box in bits(boxes):
            for way, opposite in _OPPOSITE.items():
                stand, there = beside[opposite][box], beside[way][box]
                if stand not in ways or there < 0 or boxes >> there & 1:
                    continue
                pushed = boxes ^ 1 << box | 1 << there
                left = pushes_left(layout, pushed)
                if left < inf:
                    number += 1
                    step = (trail, (*ways[stand], way))
                    heappush(queue, (pushes + 1 + WEIGHT * left, number, pushes + 1, Position(box, pushed), step))
    return ()


def _walks(beside: Mapping[str, tuple[int, ...]], agent: int, boxes: int) -> dict[int, tuple[str, ...]]:
    """cell -> the moves of a shortest walk, for every cell the agent reaches without pushing"""
    reached: dict[int, tuple[str, ...]] = {agent: ()}
    edge = [agent]
    for cell in edge:
        for way, ahead in beside.items():
            there = ahead[cell]
            if there >= 0 and there not in reached and not boxes >> there & 1:
                reached[there] = (*reached[cell], way)
                edge.append(there)
    return reached


class Solver(ByReading):
    """Acts on the observation alone, so it can advise in any episode. Of several best moves it takes the first in the order up,
    down, left, right. In a deadlock it takes the first admissible action. In a large room it follows the solution it found
    until somebody leaves it."""

    def __init__(self, task: Task | None = None) -> None:
        self._planned: dict[Position, str] = {}

    def act(self, observation: Observation) -> str:
        layout, at = read_position(observation.text)
        if is_small(layout):
            best = next(iter(best_moves(layout, at)), "")
        else:
            if at not in self._planned:
                here = at
                for move in find_solution(layout, at):
                    self._planned[here] = move
                    here = layout.move(here, move) or here
            best = self._planned.get(at, "")
        return best or (observation.actions or ("up",))[0]
