"""Search QA (Search-R1; OPID §4): find the answer to a question in at most four turns. Success is an exact match, the score F1.

Refused are all actions except `search QUERY` and `answer TEXT`, and texts without a letter or digit. A refused action uses a
turn, and the observation has the reason. Observations never repeat the query.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from random import Random

from tacit.core.actions import ActionFormat, Parsed, Tags
from tacit.core.errors import TacitError, check_split_and_count
from tacit.core.tasks import parse_panels, split_by_digest
from tacit.core.types import ActionStyle, Observation, Task, Transition
from tacit.core.world import Brief, Wording
from tacit.worlds.searchqa import published
from tacit.worlds.searchqa import retrieval as search
from tacit.worlds.searchqa.published import FAMILIES, NAME, USUAL_RETRIEVER, Question, published_tasks
from tacit.worlds.searchqa.published import SPLITS as PUBLISHED
from tacit.worlds.searchqa.retrieval import REFUSED, Encode, Passage, RetrievalServer, Retriever, parse_passages, sanitize

TOP = 3  # passages per search (Search-R1, OPID)
KEPT_QUERIES = 4096

_log = logging.getLogger(__name__)


class PassageIndex:
    """Passages with a retriever, or a retrieval server. Queries are cached, since members of a group often repeat them."""

    def __init__(self, passages: Sequence[Passage], retriever: Retriever | RetrievalServer) -> None:
        self.passages, self._retriever = passages, retriever
        self.search = lru_cache(maxsize=KEPT_QUERIES)(self._search)  # query -> the best passages, best first

    def _search(self, query: str) -> tuple[Passage, ...]:
        if isinstance(self._retriever, RetrievalServer):
            return tuple(self._retriever.search(query, TOP))
        return tuple(self.passages[i] for i in self._retriever.find(query, TOP))


def open_index(task: Task, root: Path | None = None, encode: Encode | None = None) -> PassageIndex:
    """The passage index of a task. `encode` replaces the task's retriever."""
    data = task.data
    if "land" in data:
        return _land_index(str(data["land"]), str(data.get("retriever", "bm25")), encode)
    if "corpus" not in data:
        raise TacitError(f"task {task.id!r} is not a Search QA task: its data has neither 'land' nor 'corpus'.")
    name = str(data["corpus"])
    if search.is_address(name):
        return _file_index(Path(), name, "", "", None)
    place = root or published.data_root()
    digest = published.digest_of(name, place)
    if digest != data.get("digest", digest):
        raise TacitError(
            f"the corpus {name!r} in {place} has changed since task {task.id!r} was made (digest {digest}, was "
            f"{data['digest']}): restore it, or make the tasks again."
        )
    return _file_index(place, name, digest, str(data.get("retriever", "bm25")), encode)


@lru_cache(maxsize=256)
def _land_index(land: str, retriever: str, encode: Encode | None) -> PassageIndex:
    return _make_index(make_land(land).passages, retriever, encode)


@lru_cache(maxsize=4)
def _file_index(root: Path, name: str, digest: str, retriever: str, encode: Encode | None) -> PassageIndex:
    if search.is_address(name):
        return PassageIndex((), RetrievalServer(name))
    path = (root if root.is_dir() else root.parent) / name
    if retriever == published.USUAL_RETRIEVER and encode is None and path.is_file() and path.stat().st_size >= published.LARGE:
        index = search.open_disk_index(path, digest, published.stream_passages(path))
        return PassageIndex(index, index)
    loaded = published.corpus_of(name, root)
    if loaded.failures:
        _log.warning("%s", loaded.report(f"passages of {name}"))
    return _make_index(loaded.rows, retriever, encode)


def _make_index(passages: Sequence[Passage], retriever: str, encode: Encode | None) -> PassageIndex:
    texts = [f"{title} {text}" for title, text in passages]
    return PassageIndex(passages, search.Dense(texts, encode) if encode else search.make_retriever(retriever, texts))


MAX_STEPS = 4
LONGEST_QUERY = 400  # further characters of a query are ignored
WRONG = "wrong_answer"


class SearchWorld:
    """One question at a time. `root` overrides SEARCHQA_DATA; `encode` is a custom sentence encoder."""

    _library: PassageIndex | None = None
    _passages: tuple[Passage, ...] = ()

    def __init__(self, root: Path | None = None, encode: Encode | None = None) -> None:
        self._root, self._encode = root, encode

    def reset(self, task: Task) -> Observation:
        try:
            self._question, self._answers = sanitize(str(task.data["question"])), tuple(map(str, task.data["answers"]))
        except KeyError as missing:
            raise TacitError(f"task {task.id!r} is not a Search QA task: its data has no {missing}.") from None
        self._scoring = str(task.data.get("scoring", ""))
        self._library, self._passages = open_index(task, self._root, self._encode), ()
        return self._observe(f"Question: {self._question}")

    def step(self, action: str) -> Transition:
        if self._library is None:
            raise TacitError("no episode has been started: call reset(task) first.")
        kind, text = parse_action(action)
        if kind == "answer":
            right, overlap = search.exact_match(text, self._answers), search.f1(text, self._answers)
            if self._scoring == "squad":
                right, overlap = search.squad_scores(text, self._answers)
            seen = Observation("Right." if right else "Wrong.")
            return Transition(seen, True, right, score=overlap, label="" if right else WRONG)
        if kind == "search":
            self._passages = self._library.search(text)
            return Transition(self._observe(search.format_passages(self._passages)))
        return Transition(self._observe(f"{REFUSED}{text}"), effective=False)

    def close(self) -> None:
        self._library = None

    def _observe(self, text: str) -> Observation:
        return Observation(text, search.suggest_actions(self._question, self._passages))


def parse_action(action: str) -> tuple[str, str]:
    """(`search` or `answer`, what) or ("", why not)"""
    kind, _, text = action.strip().partition(" ")
    kind, text = kind.lower(), sanitize(text[: 4 * LONGEST_QUERY])[:LONGEST_QUERY]
    if kind not in ("search", "answer"):
        return "", "neither a search nor an answer"
    if not any(c.isalnum() for c in text):
        return "", f"there is no word to {kind}" if kind == "search" else "the answer is empty"
    return kind, text


RULES = f"""Answer the question. You can look things up before you answer, in at most {MAX_STEPS} turns altogether.
To search, write <search> your query </search>: the passages that fit best come back between <information> and </information>.
Once you know, write <answer> the answer </answer>, as short as it can be: a name, a date, yes or no. It is final."""
TERSE_PASSAGE = 160  # maximum characters of a passage in the terse wording


@dataclass(frozen=True)
class SearchTags(Tags):
    """As in the reference implementations: the first complete <search>, else <answer>; several tags are invalid. Thoughts are
    requested but not required."""

    kinds: tuple[str, ...] = ("search", "answer")
    keep_case: bool = True
    cjk: bool = True

    def parse(self, text: str) -> Parsed:
        """
        >>> SearchTags().parse("<think>Who?</think><search>author of Emma</search>")
        Parsed(action='search author of Emma', valid=True)
        >>> SearchTags().parse("<search>Emma</search><answer>Jane Austen</answer>")
        Parsed(action='search Emma', valid=False)
        """
        parsed = Tags(self.kinds, thinks=False, keep_case=True, cjk=True).parse(text)
        tags = text.lower()
        once = sum(tags.count(f"</{kind}>") for kind in self.kinds) == 1
        return Parsed(parsed.action, parsed.valid and once)


class FullWording(Wording):
    separator = "\n\n"
    formats: Mapping[ActionStyle, ActionFormat] = {"tags": SearchTags()}

    def task(self, task: Task) -> str:
        return f"{RULES}\n\nQuestion: {sanitize(str(task.data['question']))}"

    def turn(self, number: int, observation: Observation, action: str) -> str:
        kind, argument = parse_action(action)
        done = f"<{kind}> {argument} </{kind}>" if kind else sanitize(action, LONGEST_QUERY)
        return "\n".join(part for part in (_last_result(observation), f"Turn {number}: {done}") if part)

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        left = MAX_STEPS - number
        turns = f"Turn {number} of {MAX_STEPS}" + (", the last: answer now." if left <= 0 else ".")
        return "\n".join(part for part in (_last_result(observation), turns) if part)

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return "Write one line: `search` and a query, or `answer` and the answer."
        return (
            "Think inside <think> </think>, then write either one <search> query </search> or, if you know enough, one "
            "<answer> answer </answer>."
        )


class TerseWording(Brief):
    """The question, then passages without numbers; `!` means that the last action was refused, `1/4` is the turn. A past turn
    keeps only its best passage."""

    formats: Mapping[ActionStyle, ActionFormat] = {"tags": SearchTags()}

    def task(self, task: Task) -> str:
        return sanitize(str(task.data["question"]))

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{_brief_passages(observation, 1)} > {sanitize(action, TERSE_PASSAGE)}".strip()

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        return f"{_brief_passages(observation, 3)} {number}/{MAX_STEPS} >".strip()


def brief(passage: Passage) -> str:
    """A passage on one line that begins with its title."""
    title, text = passage
    return sanitize(text if text.lower().find(title.lower(), 0, len(title) + 8) >= 0 else f"{title}: {text}", TERSE_PASSAGE)


def _last_result(observation: Observation) -> str:
    """The result of the last action; empty for the question, which the prompt states itself."""
    text = observation.text
    return "" if text.startswith("Question: ") else text


def _brief_passages(observation: Observation, most: int) -> str:
    if observation.text.startswith(REFUSED):
        return "!"
    return " | ".join(brief(passage) for passage in parse_passages(observation.text)[:most])


# Search QA tasks and their generated corpora. `hard` has chains of three facts.
#
# A land is a fictional corpus, seeded by its name: people, towns, rivers and books, each with a passage. Its name begins with
# its split. A digest of each surname, town, river and book decides its split, so no two splits share a name.

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
