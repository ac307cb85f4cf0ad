"""Search QA (Search-R1; OPID §4): find the answer to a question in at most four turns. Success is an exact match, the score F1.

Refused are all actions except `search QUERY` and `answer TEXT`, and texts without a letter or digit. A refused action uses a
turn, and the observation has the reason. Observations never repeat the query.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tacit.core.actions import ActionFormat, Parsed, Tags
from tacit.core.errors import TacitError
from tacit.core.types import ActionStyle, Observation, Task, Transition
from tacit.core.world import Brief, Wording
from tacit.worlds.searchqa import published
from tacit.worlds.searchqa import retrieval as search
from tacit.worlds.searchqa.retrieval import REFUSED, Encode, Passage, RetrievalServer, Retriever, parse_passages, sanitize
from tacit.worlds.searchqa.tasks import make_land

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
