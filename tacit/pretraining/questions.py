"""Questions that the text in front of the reader answers. They know nothing of any world but its punctuation.

at? countertop 1                                   what a field of the state block says
first unchecked? cabinet 3                         its first entry, ranges (`cabinet 3-7`) read out
next unchecked after cabinet 3? cabinet 4
drawer 2 in checked? no
where plate 3? countertop 1                        `place: thing, thing` in what is seen now
how: take plate from countertop? take plate 3 …    a possible action, told without its numbers
can go to drawer 9? yes
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from tacit.core.types import Observation

Question = tuple[str, str]
Asker = Callable[[Random, Observation], Sequence[Question]]
"""what a world asks besides, e.g. Countdown: what 12 + 7 is"""

_FIELD = re.compile(r"^([a-z][a-z ]*): (.+)$", re.MULTILINE)
_PLACE = re.compile(r"(?:^|[;|\n] ?)([a-z]+(?: \d+)?)(?: open)?: ([^;|>\n]+)")
_NOTHING = "nothing"
"""what is written where nothing is"""
_NUMBERS = re.compile(r" ?\d+")


def questions(rng: Random, text: str, observation: Observation, more: Asker | None) -> list[Question]:
    """Some questions about what is read and what could be done, in random order."""
    fields = dict(_FIELD.findall(text))
    asked: list[Question] = []
    if fields:
        asked += _about_fields(rng, fields)
    asked += _about_places(rng, text.rpartition("\n")[2])
    asked += _about_actions(rng, observation.actions)
    if more is not None:
        asked += more(rng, observation)
    rng.shuffle(asked)
    return asked


def entries(value: str) -> list[str]:
    """`drawer 1-3 5, bed 1` -> drawer 1, drawer 2, drawer 3, drawer 5, bed 1"""
    if "(" in value:  # a command, whose commas separate nothing
        return [value]
    found = []
    for part in value.split(", "):
        kind, *numbers = re.split(r" (?=\d)", part)
        for number in numbers:
            first, _, last = number.partition("-")
            if not first.isdigit() or not (last or first).isdigit():
                return [value]
            found += [f"{kind} {n}" for n in range(int(first), int(last or first) + 1)]
        if not numbers:
            found.append(kind)
    return found


def _about_fields(rng: Random, fields: dict[str, str]) -> list[Question]:
    label = rng.choice(sorted(fields))
    asked = [(label, fields[label])]
    lists = {name: found for name, value in fields.items() if len(found := entries(value)) > 1}
    if not lists:
        return asked
    name = rng.choice(sorted(lists))
    found = lists[name]
    spot = rng.randrange(len(found) - 1)
    asked.append((f"first {name}", found[0]))
    asked.append((f"next {name} after {found[spot]}", found[spot + 1]))
    other = rng.choice(sorted(lists))
    item = rng.choice(lists[other])
    asked.append((f"{item} in {name}", "yes" if item in found else "no"))
    return asked


def _about_places(rng: Random, now: str) -> list[Question]:
    """Of what lies where, by the last line: what is seen now."""
    listed = [(place, thing) for place, things in _PLACE.findall(now) for thing in things.strip().split(", ")]
    seen = [(place, thing) for place, thing in listed if thing != _NOTHING]
    if not seen:
        return []
    place, thing = rng.choice(seen)
    return [(f"where {thing}", place)] if sum(other == thing for _, other in seen) == 1 else []


def _about_actions(rng: Random, actions: Sequence[str]) -> list[Question]:
    if not actions:
        return []
    action = rng.choice(actions)
    described = _NUMBERS.sub("", action)
    asked = [(f"can {action}", "yes")]
    if described != action:
        asked.append((f"how: {described}", action))
        # The same command with another number: is it among the possible ones?
        changed = _NUMBERS.sub(
            lambda found: f" {rng.randint(1, 9)}" if found.group().startswith(" ") else found.group(), action
        )
        asked[0] = (f"can {changed}", "yes" if changed in actions else "no")
    return asked
