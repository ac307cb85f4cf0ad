"""What an episode of Sokoban teaches, by rule: the pushes that solved the room, or the one after which nothing could.

A solver knows what to do from any position but a deadlock, where there is nothing to be said.
"""

from __future__ import annotations

from tacit.core.hindsight import critical_steps
from tacit.core.skills import Skills
from tacit.core.types import Observation, Trajectory
from tacit.environments.sokoban.room import Room
from tacit.environments.sokoban.solver import best_moves, deadlocked
from tacit.environments.sokoban.tracker import SokobanTracker
from tacit.environments.sokoban.world import read_position

_TRACKER = SokobanTracker()
MOST = 5
"""critical steps of an episode"""


class _Adviser:
    """Nothing in a deadlock; elsewhere a move of a shortest solution."""

    def act(self, observation: Observation) -> str:
        return next(iter(best_moves(*read_position(observation.text))), "")


def hindsight(trajectory: Trajectory) -> Skills:
    steps = critical_steps(trajectory, _Adviser(), _TRACKER, most=len(trajectory))
    if trajectory.success:
        pushed = ", ".join(pushes(trajectory))
        return Skills(f"push {pushed}, in this order", dict(list(steps.items())[:MOST]), f"Solved in {len(trajectory)} moves.")
    as_good = {
        t for t in steps if trajectory.steps[t].action in best_moves(*read_position(trajectory.steps[t].observation.text))
    }
    others = [(t, told) for t, told in steps.items() if t not in as_good]
    fatal = first_deadlock(trajectory)
    if fatal is None:
        return Skills(f"push {', '.join(solution(trajectory))}, in this order", dict(others[:MOST]), "Not solved in time.")
    step = trajectory.steps[fatal]
    wrong = f"do not push the box {step.action}"
    kept = dict([(t, told) for t, told in others if t < fatal][: MOST - 1])
    kept[fatal] = f"{_Adviser().act(step.observation)}; {wrong}"
    layout, at = read_position(step.observation.text)
    row, column = divmod(layout.beside(at.agent, step.action.strip().lower()), layout.width)
    where = f"that is in row {row + 1}, column {column + 1}"
    return Skills(f"{wrong} {where}: after that the room cannot be solved", kept, "Lost by a push that cannot be undone.")


def pushes(trajectory: Trajectory) -> list[str]:
    """The moves that moved a box."""
    seen = [*(step.observation for step in trajectory.steps), trajectory.final]
    boxes = [read_position(observation.text)[1].boxes for observation in seen]
    return [step.action for step, now, then in zip(trajectory.steps, boxes, boxes[1:], strict=False) if now != then]


def solution(trajectory: Trajectory) -> list[str]:
    """The pushes of a shortest solution from the start."""
    layout, at = read_position(trajectory.steps[0].observation.text)
    room, found = Room(layout), []
    while best := best_moves(layout, at):
        there = room.move(at, best[0])
        assert there is not None
        found += [best[0]] if there.boxes != at.boxes else []
        at = there
    return found


def first_deadlock(trajectory: Trajectory) -> int | None:
    """The step after which the room could no longer be solved."""
    seen = [*(step.observation for step in trajectory.steps[1:]), trajectory.final]
    return next((t for t, after in enumerate(seen) if deadlocked(*read_position(after.text))), None)
