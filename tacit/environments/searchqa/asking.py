"""Questions about a land: one fact of one thing, facts in a chain, and two things compared.

one_hop      On which river is Talbrook?
bridge       On which river is the town where Mara Velden was born?          (three facts in a chain: the split `hard`)
comparison   Who was born first, Mara Velden or Jon Hale?    Were Mara Velden and Jon Hale born in the same town?
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from tacit.environments.searchqa.land import Land, Thing

ASKED = {
    "profession": "What is the profession of {}?",
    "birthplace": "Where was {} born?",
    "born": "In which year was {} born?",
    "teacher": "Who was the teacher of {}?",
    "river": "On which river is {}?",
    "trade": "What is {} known for?",
    "mayor": "Who is the mayor of {}?",
    "founded": "In which year was {} founded?",
    "lake": "Into which lake does {} flow?",
    "hills": "In which hills does {} rise?",
    "author": "Who wrote {}?",
    "published": "In which year was {} published?",
}
LINKS = {
    "birthplace": "the town where {} was born",
    "teacher": "the teacher of {}",
    "river": "the river of {}",
    "mayor": "the mayor of {}",
    "author": "the author of {}",
}
"""facts that lead to another thing"""
COMPARED = {
    "person": ("born", "Who was born first, {} or {}?"),
    "town": ("founded", "Which town was founded first, {} or {}?"),
    "book": ("published", "Which book was published first, {} or {}?"),
}


class Question(NamedTuple):
    family: str
    text: str
    answers: tuple[str, ...]
    titles: tuple[str, ...]
    """whose passages say it, in the order they are needed"""


def draw_question(rng: Random, land: Land, family: str, hops: int) -> Question:
    return _comparison(rng, land) if family == "comparison" else _chain(rng, land, family, hops)


def _chain(rng: Random, land: Land, family: str, hops: int) -> Question:
    """`hops` facts, each of the thing that the one before leads to; no thing comes twice."""
    while True:
        thing = rng.choice(list(land.things.values()))
        met, told = [thing.name], thing.name
        while len(met) < hops:
            link = rng.choice([fact for fact in thing.facts if fact in LINKS] or [""])
            if not link or thing.facts[link] in met:
                break
            told = LINKS[link].format(_the(thing, told) if len(met) == 1 else told)
            thing = land.things[thing.facts[link]]
            met.append(thing.name)
        if len(met) == hops:
            fact = rng.choice(list(thing.facts))
            subject = _the(thing, told) if hops == 1 else told
            return Question(family, ASKED[fact].format(subject), (thing.facts[fact],), tuple(met))


def _comparison(rng: Random, land: Land) -> Question:
    kind = rng.choice(list(COMPARED))
    first, second = _two(rng, land.of(kind))
    if kind == "person" and rng.random() < 0.5:
        if rng.random() < 0.5:  # as often yes as no
            there = [
                other for other in land.of(kind) if other.facts["birthplace"] == first.facts["birthplace"] and other != first
            ]
            second = rng.choice(there or [second])
        answer = "yes" if first.facts["birthplace"] == second.facts["birthplace"] else "no"
        text = f"Were {first.name} and {second.name} born in the same town?"
        return Question("comparison", text, (answer,), (first.name, second.name))
    fact, text = COMPARED[kind]
    while first.facts[fact] == second.facts[fact]:
        first, second = _two(rng, land.of(kind))
    earlier = min(first, second, key=lambda thing: int(thing.facts[fact]))
    return Question("comparison", text.format(first.name, second.name), (earlier.name,), (first.name, second.name))


def _two(rng: Random, things: Sequence[Thing]) -> tuple[Thing, Thing]:
    first, second = rng.sample(things, 2)
    return first, second


def _the(thing: Thing, told: str) -> str:
    return f"the {told}" if thing.kind == "river" else told
