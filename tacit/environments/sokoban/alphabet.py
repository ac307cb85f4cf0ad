"""Sixteen atomic skills: what a step does, by direction.

    WALK     a step onto free floor                       PLACE    a push that brings a box onto a target
    PUSH     any other push                               BUMP     a step that is refused

What is no direction has no skill.
"""

from __future__ import annotations

from tacit.core.types import Trajectory
from tacit.core.world import Alphabet
from tacit.environments.sokoban.room import DIRECTIONS, Room
from tacit.environments.sokoban.world import parse, read_position

KINDS = ("WALK", "PUSH", "PLACE", "BUMP")
SKILLS = tuple(f"{kind}-{way.upper()}" for kind in KINDS for way in DIRECTIONS)


def skill(action: str, seen: str) -> str | None:
    """What the action does to the room that is seen."""
    direction = parse(action)
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
