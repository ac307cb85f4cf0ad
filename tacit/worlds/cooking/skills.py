"""Skill alphabets and handbook. Ten atomic skills by the command's verb (ReuseRL Table 3, §E.2).

In the native game, commands with an unknown verb have no skill. Real TextWorld games also accept the synonyms of Inform's
grammar (`get`, `n`, `x cookbook`): each has the skill of its verb, and anything else is INSPECT, so that no synonym makes an
episode look shorter.
"""

from __future__ import annotations

import re

from tacit.core.types import StopReason, Trajectory
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
_ARTICLES = ("the", "a", "an", "some")
_NEXT_COMMAND = re.compile(r"\.|\bthen\b")
_AGAIN = ("again", "g")


def skill(action: str) -> str | None:
    words = action.lower().split()
    return _WHOLE.get(" ".join(words)) or (_VERBS.get(words[0]) if words else None)


def project(trajectory: Trajectory) -> tuple[str, ...]:
    skills = (skill(step.action) for step in trajectory.steps)
    return tuple(s for s in skills if s is not None)


def project_textworld(trajectory: Trajectory) -> tuple[str, ...]:
    """One skill per command. A line may have several (`take knife then n. e`), and counts as at least one."""
    skills: list[str] = []
    for step in trajectory.steps:
        commands = [each for each in _NEXT_COMMAND.split(step.action.lower()) if each.strip()]
        for command in commands or [""]:
            again = command.strip() in _AGAIN and skills
            skills.append(skills[-1] if again else _textworld_skill(command))
    return tuple(skills)


def _textworld_skill(command: str) -> str:
    words = [word for word in command.split() if word not in _ARTICLES]
    verb = _OTHER_WORDS.get(words[0], words[0]) if words else ""
    if verb in ("look", "examine") and words[-1] == "cookbook":
        return "READ_RECIPE"
    if words[1:] == ["inventory"]:
        return "INSPECT"
    return skill(" ".join((verb, *words[1:]))) or "INSPECT"


ALPHABET = Alphabet(SKILLS, project)
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
    return "timeout" if trajectory.stop is StopReason.STEP_LIMIT else str(trajectory.stop)
