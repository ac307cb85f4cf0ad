"""Search QA (Search-R1; OPID §4): find the answer to a question in at most four turns.

    actions   search QUERY    the world answers with the three passages that fit best, between <information> tags
              answer TEXT     ends the episode
    success   exact match with an answer of the question; the score is F1 (answers.py)
    timeout   four turns (the rollout counts them)

What is neither, a query without a word and an empty answer are refused: the turn is spent, and the observation says why.
Nothing that was asked is repeated by the world, and no passage can end the information (observed.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.searchqa.land import make_land
from tacit.worlds.searchqa.published import corpus_of, data_root, digest_of
from tacit.worlds.searchqa.retrieval import (
    REFUSED,
    Dense,
    Encode,
    Passage,
    Retriever,
    exact_match,
    f1,
    make_retriever,
    plain,
    proposals,
    show,
)

# The passages of a task and what finds them, kept while they are asked: a generated land, or a corpus of a file.

TOP = 3
"""passages that a search brings (Search-R1, OPID)"""
KEPT_QUERIES = 4096

_log = logging.getLogger(__name__)


class Library:
    """Never changes; what was asked before is answered from memory, since the members of a group keep asking the same."""

    def __init__(self, passages: Sequence[Passage], retriever: Retriever) -> None:
        self.passages, self._retriever = tuple(passages), retriever
        self.search = lru_cache(maxsize=KEPT_QUERIES)(self._search)
        """query -> the passages that fit best, best first"""

    def _search(self, query: str) -> tuple[Passage, ...]:
        return tuple(self.passages[i] for i in self._retriever.find(query, TOP))


def library_of(task: Task, root: Path | None = None, encode: Encode | None = None) -> Library:
    """Where this task's question is searched. `encode` replaces the retriever that the task names."""
    data = task.data
    if "land" in data:
        return _land_library(str(data["land"]), str(data.get("retriever", "bm25")), encode)
    if "corpus" not in data:
        raise TacitError(f"task {task.id!r} is no search question: its data has neither 'land' nor 'corpus'.")
    place, name = root or data_root(), str(data["corpus"])
    digest = digest_of(name, place)
    if digest != data.get("digest", digest):
        raise TacitError(
            f"the corpus {name!r} in {place} is not the one task {task.id!r} was made with (digest {digest}, then "
            f"{data['digest']}): put that one back, or make the tasks anew."
        )
    return _file_library(place, name, digest, str(data.get("retriever", "bm25")), encode)


@lru_cache(maxsize=256)
def _land_library(land: str, retriever: str, encode: Encode | None) -> Library:
    return _library(make_land(land).passages, retriever, encode)


@lru_cache(maxsize=4)
def _file_library(root: Path, name: str, digest: str, retriever: str, encode: Encode | None) -> Library:
    loaded = corpus_of(name, root)
    if loaded.failures:
        _log.warning("%s", loaded.report(f"passages of {name}"))
    return _library(loaded.rows, retriever, encode)


def _library(passages: Sequence[Passage], retriever: str, encode: Encode | None) -> Library:
    texts = [f"{title} {text}" for title, text in passages]
    return Library(passages, Dense(texts, encode) if encode else make_retriever(retriever, texts))


MAX_STEPS = 4
LONGEST_QUERY = 400
"""characters that are looked up; what comes after them is not read"""
WRONG = "wrong_answer"


class SearchWorld:
    """One question at a time. `root` is where its corpus lies, if not where SEARCHQA_DATA says; `encode` a sentence encoder of
    one's own."""

    def __init__(self, root: Path | None = None, encode: Encode | None = None) -> None:
        self._root, self._encode = root, encode
        self._library: Library | None = None
        self._question = ""
        self._answers: tuple[str, ...] = ()
        self._passages: tuple[Passage, ...] = ()

    def reset(self, task: Task) -> Observation:
        try:
            self._question, self._answers = plain(str(task.data["question"])), tuple(map(str, task.data["answers"]))
        except KeyError as missing:
            raise TacitError(f"task {task.id!r} is no search question: its data has no {missing}.") from None
        self._library, self._passages = library_of(task, self._root, self._encode), ()
        return self._observe(f"Question: {self._question}")

    def step(self, action: str) -> Transition:
        if self._library is None:
            raise TacitError("this world has no question yet: call reset(task) first.")
        kind, said = parse_action(action)
        if kind == "answer":
            right = exact_match(said, self._answers)
            seen = Observation("Right." if right else "Wrong.")
            return Transition(seen, True, right, score=f1(said, self._answers), label="" if right else WRONG)
        if kind == "search":
            self._passages = self._library.search(said)
            return Transition(self._observe(show(self._passages)))
        return Transition(self._observe(f"{REFUSED}{said}"), effective=False)

    def close(self) -> None:
        self._library = None

    def _observe(self, text: str) -> Observation:
        return Observation(text, proposals(self._question, self._passages))


def parse_action(action: str) -> tuple[str, str]:
    """(`search` or `answer`, what) or ("", why not)"""
    kind, _, said = action.strip().partition(" ")
    kind, said = kind.lower(), plain(said[: 4 * LONGEST_QUERY])[:LONGEST_QUERY]
    if kind not in ("search", "answer"):
        return "", "neither a search nor an answer"
    if not any(c.isalnum() for c in said):
        return "", f"there is no word to {kind}" if kind == "search" else "the answer is empty"
    return kind, said
