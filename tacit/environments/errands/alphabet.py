"""Atomic skills: opening a door for the first time or again, taking what is wanted or something else."""

from __future__ import annotations

from collections.abc import Iterator

from tacit.core.types import Trajectory
from tacit.core.world import Alphabet
from tacit.environments.errands.town import DOORS, THINGS

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
