"""Skill alphabets and handbook. Ten atomic skills by the command's verb (ReuseRL Table 3, §E.2).

In the native game, commands with an unknown verb have no skill. Real TextWorld games also accept the synonyms of Inform's
grammar (`get`, `n`, `x cookbook`): each has the skill of its verb, and anything else is INSPECT, so that no synonym makes an
episode look shorter.
"""

from __future__ import annotations

import re

from tacit.core.hindsight import stop_label
from tacit.core.types import Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.cooking.world import BURNED_LABEL, WRONG_LABEL

SKILLS = ("READ_RECIPE", "INSPECT", "EXPLORE", "OPEN", "TAKE", "DELIVER", "CUT", "COOK", "PREPARE_MEAL", "EAT_MEAL")
_WHOLE = {"examine cookbook": "READ_RECIPE", "prepare meal": "PREPARE_MEAL", "eat meal": "EAT_MEAL"}
_VERBS = {
    **dict.fromkeys(("look", "inventory", "eat", "drink", "examine"), "INSPECT"),
    "go": "EXPLORE",
    **dict.fromkeys(("open", "close"), "OPEN"),
    "take": "TAKE",
    **dict.fromkeys(("drop", "put", "insert"), "DELIVER"),
    **dict.fromkeys(("chop", "slice", "dice"), "CUT"),
    "cook": "COOK",
}
_OTHER_WORDS = {
    word: verb
    for verb, words in {
        "examine": "x watch describe check read",
        "look": "l",
        "inventory": "i inv",
        "go": "walk run enter cross exit leave n s e w ne nw se sw u d north south east west "
        "northeast northwest southeast southwest up down in out",
        "open": "unwrap uncover unlock lock shut cover",
        "take": "get carry hold pick remove",
        "drop": "throw discard",
    }.items()
    for word in words.split()
}
_NEXT_COMMAND = re.compile(r"\.|\bthen\b")


def skill(action: str) -> str | None:
    words = action.lower().split()
    return _WHOLE.get(" ".join(words)) or (_VERBS.get(words[0]) if words else None)


def project_textworld(trajectory: Trajectory) -> list[str]:
    """One skill per command. A line may have several (`take knife then n. e`), and counts as at least one."""
    skills: list[str] = []
    for step in trajectory.steps:
        for command in [each for each in _NEXT_COMMAND.split(step.action.lower()) if each.strip()] or [""]:
            words = [word for word in command.split() if word not in ("the", "a", "an", "some")]
            verb = _OTHER_WORDS.get(words[0], words[0]) if words else ""
            if skills and command.strip() in ("again", "g"):
                skills.append(skills[-1])
            elif verb in ("look", "examine") and words[-1] == "cookbook":
                skills.append("READ_RECIPE")
            else:
                known = None if words[1:] == ["inventory"] else skill(" ".join((verb, *words[1:])))
                skills.append(known or "INSPECT")
    return skills


ALPHABET = Alphabet(SKILLS, lambda trajectory: (skill(step.action) for step in trajectory.steps))
TEXTWORLD_ALPHABET = Alphabet(SKILLS, project_textworld)
HANDBOOK = {
    "": (
        "find the kitchen and examine the cookbook first; gather every ingredient; cut before cooking; look whether something "
        "is cooked already, since what is cooked twice burns; then prepare meal in the kitchen and eat meal"
    )
}


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed: `burned`, `wrong_processing` or `timeout` (ReuseRL Table 8), else the stop reason."""
    if trajectory.end_label in (BURNED_LABEL, WRONG_LABEL):
        return trajectory.end_label
    return stop_label(trajectory)
