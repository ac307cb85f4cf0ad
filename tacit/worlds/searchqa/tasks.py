"""Search QA tasks and their generated corpora. `hard` has chains of three facts.

A land is a fictional corpus, seeded by its name: people, towns, rivers and books, each with a passage. Its name begins with its
split. A digest of each surname, town, river and book decides its split, so no two splits share a name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from random import Random

from tacit.core.errors import check_split_and_count
from tacit.core.tasks import parse_panels, split_by_digest
from tacit.core.types import Task
from tacit.worlds.searchqa.published import FAMILIES, NAME, USUAL_RETRIEVER, Question, published_tasks
from tacit.worlds.searchqa.published import SPLITS as PUBLISHED
from tacit.worlds.searchqa.retrieval import Passage

PEOPLE, TOWNS, RIVERS, BOOKS = 64, 20, 8, 24
_LAND = tomllib.loads(Path(__file__).with_name("land.toml").read_text(encoding="utf-8"))
_WORDS = _LAND["words"]
FIRST_NAMES, ADJECTIVES, NOUNS, PROFESSIONS, TRADES = (
    _WORDS[kind].split() for kind in ("first_names", "adjectives", "nouns", "professions", "trades")
)
LAKES, HILLS = [f"Lake {name}" for name in _WORDS["lakes"].split()], [f"{name} Hills" for name in _WORDS["hills"].split()]
QUESTIONS, LINKS, COMPARED = _LAND["questions"], _LAND["links"], _LAND["compared"]


@dataclass(frozen=True)
class Thing:
    name: str
    kind: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Land:
    things: Mapping[str, Thing]  # by name, in passage order
    passages: tuple[Passage, ...]

    def of(self, kind: str) -> list[Thing]:
        return [thing for thing in self.things.values() if thing.kind == kind]


@lru_cache(maxsize=256)
def make_land(name: str) -> Land:
    """The land with this name, the same on every machine. Cached, since each has many questions."""
    split = name.partition("/")[0]
    rng = Random(f"searchqa/{name}")
    towns, rivers = (rng.sample(_names(kind, split), count) for kind, count in (("town", TOWNS), ("river", RIVERS)))
    books = rng.sample(_of_split((f"The {a} {n}" for a, n in product(ADJECTIVES, NOUNS)), split), BOOKS)
    surnames = _names("surname", split)
    people = [f"{first} {last}" for first, last in rng.sample(list(product(FIRST_NAMES, surnames)), PEOPLE)]
    births = dict(zip(people, rng.sample(range(1700, 1900), PEOPLE), strict=True))
    things = []
    for person in people:  # each with an older teacher if there is one
        others = [other for other in births if other != person]
        teacher = rng.choice([other for other in others if births[other] < births[person]] or others)
        facts = {"profession": rng.choice(PROFESSIONS), "birthplace": rng.choice(towns), "born": str(births[person])}
        things.append(Thing(person, "person", {**facts, "teacher": teacher}))
    for town in towns:
        facts = {"river": rng.choice(rivers), "trade": rng.choice(TRADES), "mayor": rng.choice(people)}
        things.append(Thing(town, "town", {**facts, "founded": str(rng.randint(900, 1699))}))
    things += [Thing(river, "river", {"hills": rng.choice(HILLS), "lake": rng.choice(LAKES)}) for river in rivers]
    for book in books:
        author = rng.choice(people)
        things.append(Thing(book, "book", {"author": author, "published": str(births[author] + rng.randint(20, 60))}))
    rng.shuffle(things)
    descriptions = (rng.choice(_LAND["descriptions"][thing.kind]).format(name=thing.name, **thing.facts) for thing in things)
    passages = tuple(Passage(thing.name, text) for thing, text in zip(things, descriptions, strict=True))
    return Land({thing.name: thing for thing in things}, passages)


@lru_cache(maxsize=16)
def _names(kind: str, split: str) -> list[str]:
    beginnings, endings = (part.split() for part in _WORDS[kind])
    return _of_split((f"{a}{b}" for a, b in product(beginnings, endings)), split)


def _of_split(names: Iterable[str], split: str) -> list[str]:
    return [name for name in names if split_by_digest(name) == split]


def draw_question(rng: Random, land: Land, family: str, hops: int) -> Question:
    """A comparison, or a chain of `hops` facts, each about the thing named by the previous one; no thing occurs twice."""
    if family == "comparison":
        return _comparison(rng, land)
    while True:
        thing = rng.choice(list(land.things.values()))
        met, phrase = [thing.name], thing.name
        while len(met) < hops:
            link = rng.choice([fact for fact in thing.facts if fact in LINKS] or [""])
            if not link or thing.facts[link] in met:
                break
            phrase = LINKS[link].format(_the(thing, phrase) if len(met) == 1 else phrase)
            thing = land.things[thing.facts[link]]
            met.append(thing.name)
        if len(met) == hops:
            fact = rng.choice(list(thing.facts))
            subject = _the(thing, phrase) if hops == 1 else phrase
            return Question(family, QUESTIONS[fact].format(subject), (thing.facts[fact],), tuple(met))


def _comparison(rng: Random, land: Land) -> Question:
    kind = rng.choice(list(COMPARED))
    first, second = rng.sample(land.of(kind), 2)
    if kind == "person" and rng.random() < 0.5:
        if rng.random() < 0.5:  # half of the answers are yes
            town = first.facts["birthplace"]
            there = [other for other in land.of(kind) if other.facts["birthplace"] == town and other != first]
            second = rng.choice(there or [second])
        answer = "yes" if first.facts["birthplace"] == second.facts["birthplace"] else "no"
        text = f"Were {first.name} and {second.name} born in the same town?"
        return Question("comparison", text, (answer,), (first.name, second.name))
    fact, text = COMPARED[kind]
    while first.facts[fact] == second.facts[fact]:
        first, second = rng.sample(land.of(kind), 2)
    earlier = min(first, second, key=lambda thing: int(thing.facts[fact]))
    return Question("comparison", text.format(first.name, second.name), (earlier.name,), (first.name, second.name))


def _the(thing: Thing, phrase: str) -> str:
    return f"the {phrase}" if thing.kind == "river" else phrase


GENERATED = ("train", "test", "hard")
SPLITS = (*GENERATED, *PUBLISHED)
QUESTIONS_PER_LAND = 32
_BLOCK = (("one_hop", 1),) * 3 + (("bridge", 2),) * 3 + (("comparison", 2),) * 2
"""(family, number of facts) of eight questions, which are shuffled"""
_HARD_BLOCK = (("bridge", 3),) * len(_BLOCK)
_MOST_LANDS_PER_TASK = 8  # lands to try per requested question; a family may have no questions in a split


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> Sequence[Task]:
    """`count` different questions of the split; a larger count begins with the same questions. `families` filters them."""
    check_split_and_count(NAME, SPLITS, split, count)
    if split in PUBLISHED:
        return published_tasks(split, count, seed, families)
    tasks_so_far: list[Task] = []
    for number in range(_MOST_LANDS_PER_TASK * count):
        if len(tasks_so_far) >= count:
            break
        tasks_so_far += [task for task in _land_tasks(split, seed, number) if task.family in families]
    return tasks_so_far[:count]


def _land_tasks(split: str, seed: int, number: int) -> list[Task]:
    name = f"{split}/{seed}/{number}"
    land, rng = make_land(name), Random(f"{NAME}/questions/{name}")
    questions: dict[str, Question] = {}
    while len(questions) < QUESTIONS_PER_LAND:
        block = list(_HARD_BLOCK if split == "hard" else _BLOCK)
        rng.shuffle(block)
        for family, hops in block:
            before = len(questions)
            while len(questions) == before:
                question = draw_question(rng, land, family, hops)
                questions.setdefault(question.text, question)
    tasks = []
    for number, (family, text, answers, titles) in enumerate(questions.values()):
        data = {"question": text, "answers": list(answers), "titles": list(titles), "land": name, "retriever": USUAL_RETRIEVER}
        tasks.append(Task(NAME, f"{NAME}/{name}/{number}", family, split, seed, text, data))
    return tasks


PANELS = parse_panels("""
train  16:31566ca9517afa40 128:f50226e6bda05ed7 256:9c1b1c15a2519030 512:8b9f9f28fe20ad43 1024:7774f2fc8d3e35a8
test   16:cfdd23168a5bd6eb 128:dc267d2d7a5558d2 256:6b1b08ed90fc3892 512:855356dbfabd5037 1024:5a3879f294d1e5ca
hard   16:ce06a395437720a9 128:02407ef46908fc85 256:d6a33c55b0ad6e35 512:0a70d005535801d6 1024:976756c77bf001ab
""")  # split -> number of tasks -> panel hash
