"""Reads what the household says: the goal in its sentence, the command a feedback answers, what a view shows.

Experts know the world by this alone. Every command that changes anything is named in full by its feedback, so whoever
reads all of them knows the state of the game, whoever played.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tacit.core.errors import TacitError
from tacit.environments.alfworld.game import Goal

_GOALS: Sequence[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern + r"\.?\s*"), family)
    for pattern, family in (
        (r"(?:look at|examine the) (?P<kind>\w+) (?:under|with) the (?P<target>\w+)", "look"),
        (r"(?:put|find) two (?P<kind>\w+) (?:and put them )?(?:in|on) (?P<target>\w+)", "pick2"),
        (r"put (?:a|an|some) clean (?P<kind>\w+) (?:in|on) (?P<target>\w+)", "clean"),
        (r"put (?:a|an|some) hot (?P<kind>\w+) (?:in|on) (?P<target>\w+)", "heat"),
        (r"put (?:a|an|some) cool (?P<kind>\w+) (?:in|on) (?P<target>\w+)", "cool"),
        (r"clean (?:a|an|some) (?P<kind>\w+) and put it (?:in|on) (?P<target>\w+)", "clean"),
        (r"heat (?:a|an|some) (?P<kind>\w+) and put it (?:in|on) (?P<target>\w+)", "heat"),
        (r"cool (?:a|an|some) (?P<kind>\w+) and put it (?:in|on) (?P<target>\w+)", "cool"),
        (r"put (?:a|an|some) (?P<kind>\w+) (?:in|on) (?P<target>\w+)", "pick"),
    )
]

_COMMANDS: Sequence[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern), command)
    for pattern, command in (
        (r"You arrive at ([\w ]+)\. ", r"go to \1"),
        (r"You open the ([\w ]+)\. ", r"open \1"),
        (r"You close the ([\w ]+)\.$", r"close \1"),
        (r"You pick up the ([\w ]+) from the ([\w ]+)\.$", r"take \1 from \2"),
        (r"You move the ([\w ]+) to the ([\w ]+)\.$", r"move \1 to \2"),
        (r"You (clean|heat|cool) the ([\w ]+) using the ([\w ]+)\.$", r"\1 \2 with \3"),
        (r"You turn on the ([\w ]+)\.$", r"use \1"),
        (r"You sliced the ([\w ]+) with the ([\w ]+)\.$", r"slice \1 with \2"),
    )
]

_VIEW = re.compile(r"(?:On the ([\w ]+)|The ([\w ]+) is open\. In it), you see ([^.]*)\.")
_NAME = re.compile(r"\ba (\w+ \d+)")


def read_goal(sentence: str) -> Goal:
    """`put a hot tomato in fridge.` -> heat, tomato, fridge: what an agent can know of the goal."""
    for pattern, family in _GOALS:
        match = pattern.fullmatch(sentence.strip().lower())
        if match:
            return Goal(family, match["kind"], match["target"])
    raise TacitError(
        f"the goal {sentence!r} is none that the household gives; one it does give is 'put a clean plate in fridge.'"
    )


def command_of(feedback: str) -> str:
    """The command that this feedback answers, "" where it changed nothing (look, examine, help, a refusal, the start)."""
    for pattern, command in _COMMANDS:
        match = pattern.match(feedback)
        if match:
            return match.expand(command)
    return ""


def read_view(feedback: str) -> tuple[str, list[str]] | None:
    """The receptacle that a feedback shows the inside (or top) of, and what is there; None where it shows none."""
    match = _VIEW.search(feedback)
    return (match[1] or match[2], _NAME.findall(match[3])) if match else None


def kind_of(name: str) -> str:
    """`sinkbasin 1` -> `sinkbasin`"""
    return name.rpartition(" ")[0]


def by_number(names: Iterable[str]) -> list[str]:
    """`cabinet 2` before `cabinet 10`"""
    return sorted(names, key=lambda name: (kind_of(name), int(name.rpartition(" ")[2])))
