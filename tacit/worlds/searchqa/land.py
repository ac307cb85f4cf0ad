"""A generated corpus about a fictional land, seeded by its name: people, towns, rivers and books, each with a passage.

    person   profession, birth (town and year), teacher      Mara Velden is a potter, born in Talbrook in 1823, and a pupil of …
    town     river, trade, mayor, founding year              Talbrook is a town on the Senn, known for its cheese. …
    river    source, lake it flows into                      The Senn is a river that rises in the Harl Hills and flows into …
    book     author, year                                    The Long Winter is a book by Mara Velden, published in 1851.

A land's name begins with its split. A digest of each surname, town, river and book decides its split, so no two splits share
a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random
from typing import NamedTuple

from tacit.core.tasks import split_by_digest
from tacit.worlds.searchqa.retrieval import Passage

PEOPLE, TOWNS, RIVERS, BOOKS = 64, 20, 8, 24

FIRST_NAMES = (
    "Ada", "Alma", "Anton", "Arno", "Bela", "Bruno", "Carl", "Clara", "Dora", "Edda", "Elsa", "Emil", "Erik", "Eva",
    "Felix", "Frida", "Georg", "Greta", "Hugo", "Ida", "Ilse", "Jakob", "Jonas", "Karl", "Klara", "Lena", "Leo",
    "Lotte", "Mara", "Max", "Mina", "Nils", "Nora", "Olga", "Oskar", "Otto", "Paula", "Petra", "Rosa", "Ruth", "Sofie",
    "Sven", "Tilda", "Tom", "Ulla", "Vera", "Viktor", "Werner",
)  # fmt: skip
_SURNAME = (
    "Al Bar Bren Dal Dorn Fal Gar Hal Harl Kel Kor Lind Mal Mer Nor Ost Ral Sel Tor Vel",
    "berg den ett felt gren holm ick ling mann ner roth sen stad tor vik well",
)
_TOWN = (
    "Alt Birk Brun Eich Fels Grun Hoch Kalt Lang Moos Neu Ober Rot Sand Stein Tal Unter Weid Wies Wind",
    "au bach brook dorf feld furt hagen hausen heim horst kirch rode stedt tal wald werth",
)
_RIVER = ("Ag Bel Dra Esk Fel Gar Ill Jar Kam Lor Mur Nar Orr Pel Rus Sav Tem Ulm Var Wen", "a ach en er ix ma na ra")
_ADJECTIVES = (
    "Bitter", "Blue", "Broken", "Cold", "Dark", "Empty", "Golden", "Green", "Hidden", "Last", "Little", "Lonely",
    "Long", "Lost", "Old", "Quiet", "Red", "Second", "Silent", "Silver", "Sleeping", "Stone", "White", "Wild",
)  # fmt: skip
_NOUNS = (
    "Bell", "Boat", "Bridge", "Candle", "Door", "Feather", "Field", "Garden", "Hour", "Island", "Journey", "Key",
    "Lamp", "Letter", "Meadow", "Mill", "Orchard", "River", "Road", "Summer", "Tower", "Valley", "Winter", "Wolf",
)  # fmt: skip
PROFESSIONS = (
    "baker", "botanist", "carpenter", "cook", "doctor", "farmer", "fisher", "gardener", "glazier", "hunter", "judge",
    "mason", "miller", "painter", "pilot", "poet", "potter", "sailor", "smith", "tailor", "teacher", "weaver",
)  # fmt: skip
TRADES = (
    "amber", "apples", "beer", "bells", "bread", "cheese", "clocks", "cloth", "glass", "honey", "lace", "lamps",
    "paper", "pepper", "salt", "silk", "soap", "tea", "tin", "wine", "wool",
)  # fmt: skip
LAKES = tuple(f"Lake {name}" for name in ["Alden", "Brisk", "Corrin", "Dover", "Elm", "Farrow", "Gray", "Heron"])
HILLS = tuple(f"{name} Hills" for name in ["Ash", "Crow", "Fern", "Goat", "Larch", "Raven", "Slate", "Thorn"])


@dataclass(frozen=True)
class Thing:
    """A person, town, river or book."""

    name: str
    kind: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Land:
    things: Mapping[str, Thing]  # by name, in passage order
    passages: tuple[Passage, ...]

    def of(self, kind: str) -> list[Thing]:
        return [thing for thing in self.things.values() if thing.kind == kind]


def split_of(name: str) -> str:
    """The split of a surname, town, river or book."""
    return split_by_digest(name)


@lru_cache(maxsize=256)
def make_land(name: str) -> Land:
    """The land with this name, the same on every machine. Cached: each has many questions."""
    split = name.partition("/")[0]
    rng = Random(f"searchqa/{name}")
    towns, rivers = (rng.sample(_names(parts, split), count) for parts, count in ((_TOWN, TOWNS), (_RIVER, RIVERS)))
    books = rng.sample(_of_split((f"The {a} {n}" for a, n in product(_ADJECTIVES, _NOUNS)), split), BOOKS)
    surnames = _names(_SURNAME, split)
    people = [f"{first} {last}" for first, last in rng.sample(list(product(FIRST_NAMES, surnames)), PEOPLE)]
    births = dict(zip(people, rng.sample(range(1700, 1900), PEOPLE), strict=True))
    things = [
        *(_person(rng, person, births, towns) for person in people),
        *(_town(rng, town, people, rivers) for town in towns),
        *(Thing(river, "river", {"hills": rng.choice(HILLS), "lake": rng.choice(LAKES)}) for river in rivers),
        *(_book(rng, book, births) for book in books),
    ]
    rng.shuffle(things)
    passages = tuple(Passage(thing.name, _describe(rng, thing)) for thing in things)
    return Land({thing.name: thing for thing in things}, passages)


def _person(rng: Random, name: str, births: Mapping[str, int], towns: Sequence[str]) -> Thing:
    """A person, with an older teacher if there is one."""
    others = [other for other in births if other != name]
    teacher = rng.choice([other for other in others if births[other] < births[name]] or others)
    facts = {"profession": rng.choice(PROFESSIONS), "birthplace": rng.choice(towns), "born": str(births[name])}
    return Thing(name, "person", {**facts, "teacher": teacher})


def _book(rng: Random, name: str, births: Mapping[str, int]) -> Thing:
    author = rng.choice(list(births))
    return Thing(name, "book", {"author": author, "published": str(births[author] + rng.randint(20, 60))})


def _town(rng: Random, name: str, people: Sequence[str], rivers: Sequence[str]) -> Thing:
    facts = {"river": rng.choice(rivers), "trade": rng.choice(TRADES), "mayor": rng.choice(people)}
    return Thing(name, "town", {**facts, "founded": str(rng.randint(900, 1699))})


_DESCRIPTIONS = {
    "person": (
        "{name} is a {profession}, born in {birthplace} in {born}, and a pupil of {teacher}.",
        "{name}, a {profession} and a pupil of {teacher}, was born in {birthplace} in {born}.",
    ),
    "town": (
        "{name} is a town on the {river}, known for its {trade}. Its mayor is {mayor}. It was founded in {founded}.",
        "{name}, founded in {founded}, is a town on the {river}. It is known for its {trade}. Its mayor is {mayor}.",
    ),
    "river": ("The {name} is a river that rises in the {hills} and flows into {lake}.",),
    "book": ("{name} is a book by {author}, published in {published}.",),
}


def _describe(rng: Random, thing: Thing) -> str:
    return rng.choice(_DESCRIPTIONS[thing.kind]).format(name=thing.name, **thing.facts)


@lru_cache(maxsize=16)
def _names(parts: tuple[str, str], split: str) -> list[str]:
    beginnings, endings = (part.split() for part in parts)
    return _of_split((f"{a}{b}" for a, b in product(beginnings, endings)), split)


def _of_split(names: Iterable[str], split: str) -> list[str]:
    return [name for name in names if split_of(name) == split]


# Questions about a land:
#
# one_hop      On which river is Talbrook?
# bridge       On which river is the town where Mara Velden was born?          (three facts in a chain: the split `hard`)
# comparison   Who was born first, Mara Velden or Jon Hale?    Were Mara Velden and Jon Hale born in the same town?

QUESTIONS = {
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
}  # facts that name another thing
COMPARED = {
    "person": ("born", "Who was born first, {} or {}?"),
    "town": ("founded", "Which town was founded first, {} or {}?"),
    "book": ("published", "Which book was published first, {} or {}?"),
}


class Question(NamedTuple):
    family: str
    text: str
    answers: tuple[str, ...]
    titles: tuple[str, ...]  # titles of the supporting passages, in order


def draw_question(rng: Random, land: Land, family: str, hops: int) -> Question:
    return _comparison(rng, land) if family == "comparison" else _chain(rng, land, family, hops)


def _chain(rng: Random, land: Land, family: str, hops: int) -> Question:
    """A chain of `hops` facts, each about the thing named by the previous one; no thing occurs twice."""
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
    first, second = _draw_pair(rng, land.of(kind))
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
        first, second = _draw_pair(rng, land.of(kind))
    earlier = min(first, second, key=lambda thing: int(thing.facts[fact]))
    return Question("comparison", text.format(first.name, second.name), (earlier.name,), (first.name, second.name))


def _draw_pair(rng: Random, things: Sequence[Thing]) -> tuple[Thing, Thing]:
    first, second = rng.sample(things, 2)
    return first, second


def _the(thing: Thing, phrase: str) -> str:
    return f"the {phrase}" if thing.kind == "river" else phrase
