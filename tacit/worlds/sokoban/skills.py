"""Skill alphabet, handbook and hindsight.

Sixteen atomic skills: the effect of a step, by direction.

    WALK     a step onto free floor                       PLACE    a push that brings a box onto a target
    PUSH     any other push                               BUMP     a refused step
"""

from __future__ import annotations

from tacit.core.hindsight import Skills, critical_steps
from tacit.core.types import Observation, StopReason, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.sokoban.expert import best_moves, find_solution, is_deadlocked, is_small
from tacit.worlds.sokoban.tracker import SokobanTracker
from tacit.worlds.sokoban.world import DIRECTIONS, Room, parse_direction, read_position

KINDS = ("WALK", "PUSH", "PLACE", "BUMP")
SKILLS = tuple(f"{kind}-{way.upper()}" for kind in KINDS for way in DIRECTIONS)


def skill(action: str, seen: str) -> str | None:
    """The effect of an action on the observed room; None if it is no direction."""
    direction = parse_direction(action)
    if direction is None:
        return None
    layout, at = read_position(seen)
    room = Room(layout)
    there = room.move(at, direction)
    if there is None:
        kind = "BUMP"
    elif there.boxes == at.boxes:
        kind = "WALK"
    else:
        kind = "PLACE" if layout.targets & (there.boxes & ~at.boxes) else "PUSH"
    return f"{kind}-{direction.upper()}"


def project(trajectory: Trajectory) -> tuple[str, ...]:
    skills = (skill(step.action, step.observation.text) for step in trajectory.steps)
    return tuple(s for s in skills if s is not None)


ALPHABET = Alphabet(SKILLS, project, operators=("PUSH", "PLACE"))


HANDBOOK = {
    "": (
        "look where a box has to be pushed from before pushing it, and walk round to that side; never push a box into a corner "
        "or along a wall without a target, for it cannot be pulled back"
    ),
    "two_boxes": "decide first which box goes to which target, and do not let one box stand in the way of the other",
}


_TRACKER = SokobanTracker()
MOST = 5
"""maximum critical steps of an episode"""


class _Adviser:
    """A move of a shortest solution; nothing in a deadlock."""

    def act(self, observation: Observation) -> str:
        return next(iter(best_moves(*read_position(observation.text))), "")


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success its pushes; after a failure the fatal push, or the pushes of a solution."""
    steps = critical_steps(trajectory, _Adviser(), _TRACKER, most=len(trajectory))
    if trajectory.success:
        pushed = ", ".join(pushes(trajectory))
        return Skills(f"push {pushed}, in this order", dict(list(steps.items())[:MOST]), f"Solved in {len(trajectory)} moves.")
    as_good = {
        t for t in steps if trajectory.steps[t].action in best_moves(*read_position(trajectory.steps[t].observation.text))
    }
    others = [(t, advice) for t, advice in steps.items() if t not in as_good]
    fatal = first_deadlock(trajectory)
    if fatal is None:
        return Skills(f"push {', '.join(solution(trajectory))}, in this order", dict(others[:MOST]), "Not solved in time.")
    step = trajectory.steps[fatal]
    wrong = f"do not push the box {step.action}"
    kept = dict([(t, advice) for t, advice in others if t < fatal][: MOST - 1])
    kept[fatal] = f"{_Adviser().act(step.observation)}; {wrong}"
    layout, at = read_position(step.observation.text)
    row, column = divmod(layout.beside(at.agent, step.action.strip().lower()), layout.width)
    where = f"that is in row {row + 1}, column {column + 1}"
    return Skills(f"{wrong} {where}: after that the room cannot be solved", kept, "Lost by a push that cannot be undone.")


def pushes(trajectory: Trajectory) -> list[str]:
    """The moves that pushed a box."""
    boxes = [read_position(observation.text)[1].boxes for observation in trajectory.observations]
    return [step.action for step, now, then in zip(trajectory.steps, boxes, boxes[1:], strict=False) if now != then]


def solution(trajectory: Trajectory) -> list[str]:
    """The pushes of the solver's solution from the start."""
    layout, at = read_position(trajectory.steps[0].observation.text)
    room, found, moves = Room(layout), list[str](), iter(() if is_small(layout) else find_solution(layout, at))
    while move := next(iter(best_moves(layout, at)), "") if is_small(layout) else next(moves, ""):
        there = room.move(at, move)
        assert there is not None
        found += [move] if there.boxes != at.boxes else []
        at = there
    return found


def first_deadlock(trajectory: Trajectory) -> int | None:
    """The step after which the room was unsolvable; None if it never was."""
    after_steps = trajectory.observations[1:]
    return next((t for t, after in enumerate(after_steps) if is_deadlocked(*read_position(after.text))), None)


DEADLOCK = "deadlock"


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed: `deadlock` if the final position is unsolvable, else `timeout`, or the stop reason."""
    if trajectory.stop is not StopReason.STEP_LIMIT:
        return str(trajectory.stop)
    return DEADLOCK if is_deadlocked(*read_position(trajectory.final.text)) else "timeout"
