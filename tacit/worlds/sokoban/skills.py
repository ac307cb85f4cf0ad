"""The solver, tracker, skill alphabet, handbook, hindsight and failure reasons.

Breadth-first search with reversed moves from all solved positions reaches exactly the solvable ones (about 1,500 in a 6x6 room
with two boxes); all others are deadlocks. Rooms with more than two boxes or 64 cells have too many positions. For them,
best-first search over pushes finds a solution, and a deadlock is detected only if the boxes cannot be assigned to reachable
targets.
Signal amounts follow Table 6 of the constant-context paper; errors are positive, and a deadlock counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise
from math import inf
from random import Random
from typing import Any

from tacit.core.hindsight import RuleTracker, critical_steps, stop_label
from tacit.core.types import Observation, Skills, StopReason, Task, Trajectory, Transition
from tacit.core.world import Alphabet, ByReading
from tacit.worlds.sokoban.world import DIRECTIONS, Layout, Position, bits, parse_direction, parse_observation, read_position

_OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}
SMALL_BOXES, SMALL_CELLS = 2, 64  # largest rooms for exhaustive search
MAX_EXPANDED, WEIGHT, KEPT = 30_000, 3.0, 128  # KEPT: cached rooms


@lru_cache(maxsize=KEPT)
def moves_left(layout: Layout) -> Mapping[Position, int]:
    """position -> fewest moves to a solved position; unsolvable positions are missing"""
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
                positions, box = [Position(came_from, boxes)], ahead[agent]
                if box >= 0 and boxes >> box & 1:
                    positions.append(Position(came_from, boxes ^ 1 << box | 1 << agent))
                for position in positions:
                    if position not in reached:
                        reached[position] = moves
                        further.append(position)
        edge = further
    return reached


def is_small(layout: Layout) -> bool:
    return layout.targets.bit_count() <= SMALL_BOXES and layout.height * layout.width <= SMALL_CELLS


def best_moves(layout: Layout, at: Position) -> list[str]:
    """First moves of all shortest solutions; in a large room, the first move of the solution found. Empty in a deadlock or a
    solved position."""
    if not is_small(layout):
        return list(find_solution(layout, at)[:1])
    left = moves_left(layout)
    led = {way: layout.move(at, way) for way in DIRECTIONS} if left.get(at) else {}
    return [way for way, there in led.items() if there is not None and left.get(there) == left[at] - 1]


def is_deadlocked(layout: Layout, at: Position) -> bool:
    return at not in moves_left(layout) if is_small(layout) else pushes_left(layout, at.boxes) == inf


def pushes_left(layout: Layout, boxes: int) -> float:
    """A lower bound of the pushes left: the smallest sum of distances over all assignments of boxes to targets, ignoring other
    boxes and the agent's position. Infinite if there is no assignment."""
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
    distances: dict[int, dict[int, int]] = {}
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
        distances[target] = reached
    return distances


@lru_cache(maxsize=4 * KEPT)
def find_solution(layout: Layout, at: Position) -> tuple[str, ...]:
    """Moves that solve the room; empty if none are found within `MAX_EXPANDED` positions. Weighted A* over pushes, with
    `pushes_left` as the heuristic."""
    beside = layout.beside
    queue: list[tuple[float, int, int, Position, Any]] = [(0.0, 0, 0, at, ())]
    expanded, number = set[tuple[int, int]](), 0
    while queue and len(expanded) < MAX_EXPANDED:
        _, _, pushes, (agent, boxes), trail = heappop(queue)
        if boxes == layout.targets:
            parts = []
            while trail:
                trail, moves = trail
                parts.append(moves)
            return tuple(move for moves in reversed(parts) for move in moves)
        ways: dict[int, tuple[str, ...]] = {agent: ()}  # cell -> the moves of a shortest walk there, without pushing
        edge = [agent]
        for cell in edge:
            for way, ahead in beside.items():
                there = ahead[cell]
                if there >= 0 and there not in ways and not boxes >> there & 1:
                    ways[there] = (*ways[cell], way)
                    edge.append(there)
        key = (min(ways), boxes)
        if key in expanded:
            continue
        expanded.add(key)
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


class Solver(ByReading):
    """Plays a shortest solution; in a deadlock, the first admissible action. In a large room, it follows the solution it found
    until the position is not on it."""

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


@dataclass(frozen=True)
class PushState:
    at: Position
    met: frozenset[Position]
    distance: float  # lower bound of the pushes left
    nearest: float
    placed: int
    most_placed: int
    phase: str = "push"
    fault: str = ""


class SokobanTracker(RuleTracker):
    version = "sokoban-1"
    progress = {"subgoal": 1.0, "nearer": 0.05}
    errors = {"unreadable": 0.3, "deadlock": 0.3, "refused": 0.2, "repeated": 0.1}

    def start(self, task: Task | None, observation: Observation) -> PushState:
        layout, at = read_position(observation.text)
        distance, placed = pushes_left(layout, at.boxes), layout.placed(at)
        phase = "stuck" if is_deadlocked(layout, at) else "push"
        return PushState(at, frozenset([at]), distance, distance, placed, placed, phase)

    def update(self, state: PushState, action: str, transition: Transition) -> PushState:
        if not transition.effective:
            return replace(state, fault="refused" if parse_direction(action) else "unreadable")
        now = self.start(None, transition.observation)
        phase = "done" if transition.success else now.phase
        return replace(
            now,
            met=state.met | {now.at},
            nearest=min(state.nearest, now.distance),
            most_placed=max(state.most_placed, now.placed),
            phase=phase,
            fault="deadlock" if phase == "stuck" != state.phase else "repeated" if now.at in state.met else "",
        )

    def render(self, state: PushState) -> str:
        left = "no way" if state.distance == inf else f"at least {state.distance}"
        return f"phase: {state.phase}\nboxes on targets: {state.placed} of {state.at.boxes.bit_count()}\npushes left: {left}"

    def count(self, before: PushState, after: PushState) -> Mapping[str, float]:
        nearer = before.nearest - after.nearest if before.nearest < inf else 0
        return {"subgoal": after.most_placed - before.most_placed, "nearer": nearer}


SKILLS = tuple(f"{kind}-{way.upper()}" for kind in ("WALK", "PUSH", "PLACE", "BUMP") for way in DIRECTIONS)


def project(trajectory: Trajectory) -> Iterator[str]:
    for step in trajectory.steps:
        direction = parse_direction(step.action)
        if direction is None:
            continue
        layout, at = read_position(step.observation.text)
        there = layout.move(at, direction)
        if there is None:
            kind = "BUMP"
        elif there.boxes == at.boxes:
            kind = "WALK"
        else:
            kind = "PLACE" if layout.targets & (there.boxes & ~at.boxes) else "PUSH"
        yield f"{kind}-{direction.upper()}"


ALPHABET = Alphabet(SKILLS, project, operators=("PUSH", "PLACE"))
HANDBOOK = {
    "": (
        "look where a box has to be pushed from before pushing it, and walk round to that side; never push a box into a corner "
        "or along a wall without a target, for it cannot be pulled back"
    ),
    "two_boxes": "decide first which box goes to which target, and do not let one box stand in the way of the other",
}
MOST = 5  # maximum critical steps of an episode


class _Adviser(ByReading):
    """Advises a move of a shortest solution; empty in a deadlock."""

    def act(self, observation: Observation) -> str:
        return next(iter(best_moves(*read_position(observation.text))), "")


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success, its pushes; after a failure, the push that caused a deadlock, or else the pushes of a solution."""
    steps = critical_steps(trajectory, _Adviser(), SokobanTracker(), most=len(trajectory))
    seen = [read_position(observation.text) for observation in trajectory.observations]
    if trajectory.success:
        moves = zip(trajectory.steps, pairwise(seen), strict=True)
        pushed = ", ".join(step.action for step, (now, then) in moves if now[1].boxes != then[1].boxes)
        return Skills(f"push {pushed}, in this order", dict(list(steps.items())[:MOST]), f"Solved in {len(trajectory)} moves.")
    others = [(t, advice) for t, advice in steps.items() if trajectory.steps[t].action not in best_moves(*seen[t])]
    fatal = next((t for t, after in enumerate(seen[1:]) if is_deadlocked(*after)), None)
    if fatal is None:
        layout, at = seen[0]
        pushes, known = list[str](), iter(() if is_small(layout) else find_solution(layout, at))
        while move := next(iter(best_moves(layout, at)), "") if is_small(layout) else next(known, ""):
            there = layout.move(at, move)
            assert there is not None
            pushes += [move] if there.boxes != at.boxes else []
            at = there
        return Skills(f"push {', '.join(pushes)}, in this order", dict(others[:MOST]), "Not solved in time.")
    step, (layout, at) = trajectory.steps[fatal], seen[fatal]
    wrong = f"do not push the box {step.action}"
    kept = dict([(t, advice) for t, advice in others if t < fatal][: MOST - 1])
    kept[fatal] = f"{_Adviser().act(step.observation)}; {wrong}"
    row, column = divmod(layout.beside[step.action.strip().lower()][at.agent], layout.width)
    where = f"that is in row {row + 1}, column {column + 1}"
    return Skills(f"{wrong} {where}: after that the room cannot be solved", kept, "Lost by a push that cannot be undone.")


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed: `deadlock` if the final position is unsolvable, else `timeout`, or the stop reason."""
    lost = trajectory.stop is StopReason.STEP_LIMIT and is_deadlocked(*read_position(trajectory.final.text))
    return "deadlock" if lost else stop_label(trajectory)


def place(action: str, observation: Observation) -> str:
    """The whole room if something moved; else empty. Walking back gives the same place only if no box was pushed."""
    level = parse_observation(observation.text)
    return "" if level.refused else "/".join(level.rows)


def questions(rng: Random, observation: Observation) -> list[tuple[str, str]]:
    """Pretraining questions about the neighboring cells: `what is up? wall`."""
    layout, at = read_position(observation.text)
    direction = rng.choice(list(DIRECTIONS))
    ahead = layout.beside[direction][at.agent]
    symbol = "".join(parse_observation(observation.text).rows)[ahead] if ahead >= 0 else "W"
    names = {"W": "wall", "A": "box", "C": "target", ".": "floor", "*": "placed box"}
    return [(f"what is {direction}", names[symbol])]
