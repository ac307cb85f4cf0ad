"""Five atomic skills (ReuseRL Table 3), with a carry flag.

    go to, open (close)                      EXPLORE, or TRANSPORT while carrying
    look, examine (inventory, help, other)   EXPLORE
    take                                     TAKE
    move, put                                DELIVER
    heat, cool, clean, use, light (slice)    TRANSFORM

The flag is set by an *effective* take and cleared by an effective move or put; refused ones are still projected. What
stands in brackets the table leaves open. Every executed command has a skill, well formed or not: format has a penalty of its
own, and a step that were left out here would make a badly written win look shorter than the same win written well.
"""

from __future__ import annotations

from collections.abc import Iterable

from tacit.core.types import Trajectory
from tacit.core.world import Alphabet

SKILLS = ("EXPLORE", "TRANSPORT", "TAKE", "DELIVER", "TRANSFORM")

_SKILL_OF_VERB = {
    "take": "TAKE",
    "move": "DELIVER",
    "put": "DELIVER",
    **dict.fromkeys(("heat", "cool", "clean", "use", "light", "slice"), "TRANSFORM"),
}


def project_commands(commands: Iterable[tuple[str, bool]]) -> tuple[str, ...]:
    """Skills of (command, effective) pairs."""
    carrying, skills = False, []
    for command, effective in commands:
        verb = command.split(maxsplit=1)[0] if command.strip() else ""
        moving = verb in ("go", "open", "close")
        skills.append("TRANSPORT" if moving and carrying else _SKILL_OF_VERB.get(verb, "EXPLORE"))
        if effective and skills[-1] in ("TAKE", "DELIVER"):
            carrying = skills[-1] == "TAKE"
    return tuple(skills)


def project(trajectory: Trajectory) -> tuple[str, ...]:
    return project_commands((step.action, step.effective) for step in trajectory.steps)


ALPHABET = Alphabet(SKILLS, project)
