"""Nine atomic skills, by a command's first words. ReuseRL has no ScienceWorld; these are cut as its other worlds are, by what a
command is for. Every executed command has one, readable or not: a number answers the question which of several was meant.

    MOVE        go, open and close a door               OBSERVE     look, examine, read, inventory, task, and the rest
    ACCESS      open and close anything else            CARRY       pick up, move, put down, drop
    OPERATE     activate, deactivate, use, flush, eat   COMBINE     mix, pour, dunk
    CONNECT     connect, disconnect                     FOCUS       focus on
    WAIT        wait
"""

from __future__ import annotations

from tacit.core.types import Trajectory
from tacit.core.world import Alphabet

SKILLS = ("MOVE", "ACCESS", "OBSERVE", "CARRY", "OPERATE", "COMBINE", "CONNECT", "FOCUS", "WAIT")
_VERBS = {
    **dict.fromkeys(("go", "teleport"), "MOVE"),
    **dict.fromkeys(("open", "close"), "ACCESS"),
    **dict.fromkeys(("pick", "move", "put", "drop"), "CARRY"),
    **dict.fromkeys(("activate", "deactivate", "use", "flush", "eat"), "OPERATE"),
    **dict.fromkeys(("mix", "pour", "dunk"), "COMBINE"),
    **dict.fromkeys(("connect", "disconnect"), "CONNECT"),
    "focus": "FOCUS",
    **dict.fromkeys(("wait", "wait1"), "WAIT"),
}


def skill(action: str) -> str:
    verb, *rest = action.lower().split() or [""]
    if verb in ("open", "close") and "door" in rest:
        return "MOVE"
    return _VERBS.get(verb, "OBSERVE")


def project(trajectory: Trajectory) -> tuple[str, ...]:
    return tuple(skill(step.action) for step in trajectory.steps)


ALPHABET = Alphabet(SKILLS, project)
