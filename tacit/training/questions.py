"""Questions and answers about prompts of random play. They teach a small model to read, not to act: every answer is in the
prompt.

    put a cool plate in countertop.
    …
    at: countertop 1
    countertop 1: apple 3, plate 3 >
    at? countertop 1
    where plate 3? countertop 1
    how: take plate from countertop? take plate 3 from countertop 1
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from tacit.core.errors import TacitError
from tacit.core.types import Observation

# Kinds of questions:
#
# at? countertop 1                                   a field of the state block
# first unchecked? cabinet 3                         the first entry of a list, ranges (`cabinet 3-7`) expanded
# next unchecked after cabinet 3? cabinet 4          the entry after another
# drawer 2 in checked? no                            whether a list has an entry
# where plate 3? countertop 1                        `place: thing, thing` in the current observation
# how: take plate from countertop? take plate 3 …    a valid action, described without its numbers
# can go to drawer 9? yes                            whether an action is valid

Question = tuple[str, str]
Asker = Callable[[Random, Observation], Sequence[Question]]  # a world's own questions, e.g. the sum of 12 and 7 in Countdown

_FIELD = re.compile(r"^([a-z][a-z ]*): (.+)$", re.MULTILINE)
_PLACE = re.compile(r"(?:^|[;|\n] ?)([a-z]+(?: \d+)?)(?: open)?: ([^;|>\n]+)")
_NOTHING = "nothing"  # stands for an empty list
_NUMBERS = re.compile(r" ?\d+")


def make_questions(rng: Random, text: str, observation: Observation, more: Asker | None) -> list[Question]:
    """Questions about the text and the valid actions, in random order. `more`: further questions of the world."""
    fields = dict(_FIELD.findall(text))
    questions = _about_fields(rng, fields) if fields else []
    questions += _about_places(rng, text.rpartition("\n")[2]) + _about_actions(rng, observation.actions)
    if more is not None:
        questions += more(rng, observation)
    rng.shuffle(questions)
    return questions


def expand_entries(value: str) -> list[str]:
    """`drawer 1-3 5, bed 1` -> drawer 1, drawer 2, drawer 3, drawer 5, bed 1"""
    if "(" in value:  # a command, whose commas do not separate entries
        return [value]
    names = []
    for part in value.split(", "):
        kind, *numbers = re.split(r" (?=\d)", part)
        for number in numbers:
            first, _, last = number.partition("-")
            if not first.isdigit() or not (last or first).isdigit():
                return [value]
            names += [f"{kind} {n}" for n in range(int(first), int(last or first) + 1)]
        if not numbers:
            names.append(kind)
    return names


def _about_fields(rng: Random, fields: dict[str, str]) -> list[Question]:
    label = rng.choice(sorted(fields))
    questions = [(label, fields[label])]
    lists = {name: entries for name, value in fields.items() if len(entries := expand_entries(value)) > 1}
    if not lists:
        return questions
    name = rng.choice(sorted(lists))
    entries = lists[name]
    spot = rng.randrange(len(entries) - 1)
    questions += [(f"first {name}", entries[0]), (f"next {name} after {entries[spot]}", entries[spot + 1])]
    item = rng.choice(lists[rng.choice(sorted(lists))])
    return [*questions, (f"{item} in {name}", "yes" if item in entries else "no")]


def _about_places(rng: Random, now: str) -> list[Question]:
    """Where a thing is, according to the last line of the prompt; empty if there is none or it is in several places."""
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
    questions = [(f"can {action}", "yes")]
    if described != action:
        questions.append((f"how: {described}", action))
        # The same command with another number: is it valid?
        changed = _NUMBERS.sub(
            lambda match: f" {rng.randint(1, 9)}" if match.group().startswith(" ") else match.group(), action
        )
        questions[0] = (f"can {changed}", "yes" if changed in actions else "no")
    return questions


STRAY = 0.1  # share of actions drawn from those valid one turn ago, so that refusals occur
MAX_QUESTIONS = 4  # per prompt
RANDOM_STEPS = 24  # maximum turns of an episode of random play


def join_questions(text: str, questions: Sequence[Question]) -> tuple[str, str]:
    """(the prompt with all questions and all answers but the last, the last answer)"""
    *earlier, (last, final_answer) = questions
    lines = [text, *(f"{question}? {answer}" for question, answer in earlier), f"{last}?"]
    return "\n".join(lines), final_answer


class RandomAgent:
    """Takes random valid actions, sometimes one that was valid one turn ago."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._bold = rng, rng.random() < 0.8
        self._before: Observation | None = None

    def act(self, observation: Observation) -> str:
        before = self._before or observation
        self._before = observation
        return random_action(self._rng, before if self._rng.random() < STRAY else observation, self._bold)


def random_action(rng: Random, observation: Observation, bold: bool) -> str:
    """A random valid action. With `bold`, the verb is drawn first, because most valid actions of a household are `go`."""
    if not observation.actions:
        raise TacitError("sft.questions needs a world that lists its admissible actions; use --sft.questions 0.")
    if not bold:
        return rng.choice(observation.actions)
    by_verb: dict[str, list[str]] = {}
    for action in observation.actions:
        by_verb.setdefault(action.partition(" ")[0], []).append(action)
    return rng.choice(by_verb[rng.choice(sorted(by_verb))])
