"""Tracker, skill alphabet, handbook, hindsight and failure reasons.

    phase      push -> done, or stuck
    progress   +1.0 per box above the most ever on targets, +0.05 per push below the smallest distance so far
    error      0.3 for an unreadable action and for a push into a deadlock, 0.2 for a refused step, 0.1 for a repeated position

Values follow Table 6 of the constant-context paper; errors are positive. A deadlock counts once.

Sixteen atomic skills: the effect of a step, by direction.

    WALK     a step onto free floor                       PLACE    a push that brings a box onto a target
    PUSH     any other push                               BUMP     a refused step
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from random import Random

from tacit.core.hindsight import RuleTracker, Skills, critical_steps, stop_label
from tacit.core.types import Observation, StopReason, Task, Trajectory, Transition
from tacit.core.world import Alphabet
from tacit.worlds.sokoban.expert import best_moves, find_solution, is_deadlocked, is_small, pushes_left
from tacit.worlds.sokoban.world import DIRECTIONS, Position, parse_direction, parse_observation, read_position


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


class _Adviser:
    """A move of a shortest solution; nothing in a deadlock."""

    def act(self, observation: Observation) -> str:
        return next(iter(best_moves(*read_position(observation.text))), "")


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success its pushes; after a failure the fatal push, or the pushes of a solution."""
    steps = critical_steps(trajectory, _Adviser(), SokobanTracker(), most=len(trajectory))
    seen = [read_position(observation.text) for observation in trajectory.observations]
    if trajectory.success:
        moves = zip(trajectory.steps, pairwise(seen), strict=True)
        pushed = ", ".join(step.action for step, (now, then) in moves if now[1].boxes != then[1].boxes)
        return Skills(f"push {pushed}, in this order", dict(list(steps.items())[:MOST]), f"Solved in {len(trajectory)} moves.")
    others = [(t, advice) for t, advice in steps.items() if trajectory.steps[t].action not in best_moves(*seen[t])]
    fatal = next((t for t, after in enumerate(seen[1:]) if is_deadlocked(*after)), None)
    if fatal is None:
        return Skills(f"push {', '.join(_solution(trajectory))}, in this order", dict(others[:MOST]), "Not solved in time.")
    step, (layout, at) = trajectory.steps[fatal], seen[fatal]
    wrong = f"do not push the box {step.action}"
    kept = dict([(t, advice) for t, advice in others if t < fatal][: MOST - 1])
    kept[fatal] = f"{_Adviser().act(step.observation)}; {wrong}"
    row, column = divmod(layout.beside[step.action.strip().lower()][at.agent], layout.width)
    where = f"that is in row {row + 1}, column {column + 1}"
    return Skills(f"{wrong} {where}: after that the room cannot be solved", kept, "Lost by a push that cannot be undone.")


def _solution(trajectory: Trajectory) -> list[str]:
    """The pushes of the solver's solution from the start."""
    layout, at = read_position(trajectory.steps[0].observation.text)
    pushes, moves = list[str](), iter(() if is_small(layout) else find_solution(layout, at))
    while move := next(iter(best_moves(layout, at)), "") if is_small(layout) else next(moves, ""):
        there = layout.move(at, move)
        assert there is not None
        pushes += [move] if there.boxes != at.boxes else []
        at = there
    return pushes


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed: `deadlock` if the final position is unsolvable, else `timeout`, or the stop reason."""
    lost = trajectory.stop is StopReason.STEP_LIMIT and is_deadlocked(*read_position(trajectory.final.text))
    return "deadlock" if lost else stop_label(trajectory)


def place(action: str, observation: Observation) -> str:
    """The whole position if something moved: walking back reaches the same place only if no box was pushed."""
    shown = parse_observation(observation.text)
    return "" if shown.refused else "/".join(shown.rows)


def questions(rng: Random, observation: Observation) -> list[tuple[str, str]]:
    """Pretraining questions about the neighboring cells: `what is up? wall`."""
    layout, at = read_position(observation.text)
    direction = rng.choice(list(DIRECTIONS))
    ahead = layout.beside[direction][at.agent]
    symbol = "".join(parse_observation(observation.text).rows)[ahead] if ahead >= 0 else "W"
    names = {"W": "wall", "A": "box", "C": "target", ".": "floor", "*": "placed box"}
    return [(f"what is {direction}", names[symbol])]
