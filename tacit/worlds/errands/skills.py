"""Skill alphabet, handbook, hindsight and failure reasons.

Four atomic skills: opening a door for the first time or again, taking the wanted thing or another.
"""

from __future__ import annotations

from collections.abc import Iterator

from tacit.core.hindsight import Skills, critical_steps
from tacit.core.types import StopReason, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.errands.expert import Resident
from tacit.worlds.errands.tracker import ErrandTracker
from tacit.worlds.errands.world import DOORS, THINGS, format_fact, parse_observation

SKILLS = ("OPEN-NEW", "OPEN-AGAIN", "TAKE-WANTED", "TAKE-OTHER")


def project(trajectory: Trajectory) -> Iterator[str]:
    opened: set[str] = set()
    for step in trajectory.steps:
        verb, _, name = step.action.strip().partition(" ")
        if verb == "open" and name in DOORS:
            yield "OPEN-AGAIN" if name in opened else "OPEN-NEW"
            opened.add(name)
        elif verb == "take" and name in THINGS:
            yield "TAKE-WANTED" if name == trajectory.task.data["thing"] else "TAKE-OTHER"


ALPHABET = Alphabet(SKILLS, project, operators=("OPEN", "TAKE"))


HANDBOOK = {"": "open the door behind which the thing was seen before; take it as soon as it is in sight"}


_TRACKER = ErrandTracker()


def hindsight(trajectory: Trajectory) -> Skills:
    """Where the wanted thing was seen, if it was."""
    wanted = str(trajectory.task.data["thing"])
    parsed = (parse_observation(observation.text) for observation in trajectory.observations)
    seen = {thing: door for door, things, _ in parsed for thing in things if door}
    steps = critical_steps(trajectory, Resident(trajectory.task), _TRACKER)
    advice = format_fact(wanted, seen[wanted]) if wanted in seen else ""
    return Skills(advice, steps, f"{trajectory.task.goal}. {'Done' if trajectory.success else 'Failed'}.")


def failure(trajectory: Trajectory) -> str:
    """`not_taken` if the thing was visible, `unreadable` if no door was opened, else `not_found`; or the stop reason."""
    if trajectory.stop is not StopReason.STEP_LIMIT:
        return str(trajectory.stop)
    shown = [parse_observation(observation.text)[1] for observation in trajectory.observations]
    if any(trajectory.task.data["thing"] in things for things in shown):
        return "not_taken"
    return "not_found" if any(shown) else "unreadable"
