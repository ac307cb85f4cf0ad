"""Ten atomic skills (ReuseRL Table 3, §E.2), by the command's first word, of every command that was executed, well formed or
not. A command of no known verb has no skill: the native game refuses it. A real TextWorld game knows more words (`get`, `n`,
`x cookbook`), so there it is an INSPECT: what has no skill has no cost, and would be the cheaper way to say the same."""

from __future__ import annotations

from tacit.core.types import Trajectory
from tacit.core.world import Alphabet

SKILLS = (
    "READ_RECIPE",
    "INSPECT",
    "EXPLORE",
    "OPEN",
    "TAKE",
    "DELIVER",
    "CUT",
    "COOK",
    "PREPARE_MEAL",
    "EAT_MEAL",
)
_WHOLE = {"examine cookbook": "READ_RECIPE", "prepare meal": "PREPARE_MEAL", "eat meal": "EAT_MEAL"}
_VERBS = {
    **dict.fromkeys(("look", "inventory", "eat", "examine"), "INSPECT"),
    "go": "EXPLORE",
    **dict.fromkeys(("open", "close"), "OPEN"),
    "take": "TAKE",
    **dict.fromkeys(("drop", "put", "insert"), "DELIVER"),
    **dict.fromkeys(("chop", "slice", "dice"), "CUT"),
    "cook": "COOK",
}


def skill(action: str) -> str | None:
    words = action.lower().split()
    return _WHOLE.get(" ".join(words)) or (_VERBS.get(words[0]) if words else None)


def project(trajectory: Trajectory) -> tuple[str, ...]:
    skills = (skill(step.action) for step in trajectory.steps)
    return tuple(s for s in skills if s is not None)


def project_all(trajectory: Trajectory) -> tuple[str, ...]:
    return tuple(skill(step.action) or "INSPECT" for step in trajectory.steps)


ALPHABET = Alphabet(SKILLS, project)
TEXTWORLD_ALPHABET = Alphabet(SKILLS, project_all)
