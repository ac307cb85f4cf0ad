"""Search QA (Search-R1; OPID §4): find the answer to a question in at most four turns.

    actions   search QUERY    returns the three best passages between <information> tags
              answer TEXT     ends the episode
    success   exact match with one of the answers; the score is F1
    timeout   four turns (counted by the rollout)

Any other action, a query without a word and an empty answer are refused: the turn is spent, and the observation says why.
Observations never repeat the query.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.searchqa import published
from tacit.worlds.searchqa.land import make_land
from tacit.worlds.searchqa.large import open_disk_index
from tacit.worlds.searchqa.published import USUAL_RETRIEVER, corpus_of, data_root, digest_of
from tacit.worlds.searchqa.retrieval import (
    REFUSED,
    Dense,
    Encode,
    Passage,
    RetrievalServer,
    Retriever,
    exact_match,
    f1,
    format_passages,
    is_address,
    make_retriever,
    sanitize,
    squad_scores,
    suggest_actions,
)

TOP = 3  # passages per search (Search-R1, OPID)
KEPT_QUERIES = 4096

_log = logging.getLogger(__name__)


class PassageIndex:
    """Immutable passages with a retriever, or a server that has both. Queries are cached: the members of a group often ask the
    same."""

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
    if is_address(name):
        return _remote_index(name)
    place = root or data_root()
    digest = digest_of(name, place)
    if digest != data.get("digest", digest):
        raise TacitError(
            f"the corpus {name!r} in {place} is not the one task {task.id!r} was made with (digest {digest}, then "
            f"{data['digest']}): put that one back, or make the tasks anew."
        )
    return _file_index(place, name, digest, str(data.get("retriever", "bm25")), encode)


@lru_cache(maxsize=256)
def _land_index(land: str, retriever: str, encode: Encode | None) -> PassageIndex:
    return _make_index(make_land(land).passages, retriever, encode)


@lru_cache(maxsize=4)
def _remote_index(address: str) -> PassageIndex:
    return PassageIndex((), RetrievalServer(address))


@lru_cache(maxsize=4)
def _file_index(root: Path, name: str, digest: str, retriever: str, encode: Encode | None) -> PassageIndex:
    path = (root if root.is_dir() else root.parent) / name
    if retriever == USUAL_RETRIEVER and encode is None and path.is_file() and path.stat().st_size >= published.LARGE:
        index = open_disk_index(path, digest, published.stream_passages(path))
        return PassageIndex(index, index)
    loaded = corpus_of(name, root)
    if loaded.failures:
        _log.warning("%s", loaded.report(f"passages of {name}"))
    return _make_index(loaded.rows, retriever, encode)


def _make_index(passages: Sequence[Passage], retriever: str, encode: Encode | None) -> PassageIndex:
    texts = [f"{title} {text}" for title, text in passages]
    return PassageIndex(passages, Dense(texts, encode) if encode else make_retriever(retriever, texts))


MAX_STEPS = 4
LONGEST_QUERY = 400  # further characters of a query are ignored
WRONG = "wrong_answer"


class SearchWorld:
    """One question at a time. `root` overrides SEARCHQA_DATA; `encode` is a custom sentence encoder."""

    def __init__(self, root: Path | None = None, encode: Encode | None = None) -> None:
        self._root, self._encode = root, encode
        self._library: PassageIndex | None = None
        self._question = ""
        self._answers: tuple[str, ...] = ()
        self._scoring = ""
        self._passages: tuple[Passage, ...] = ()

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
        kind, said = parse_action(action)
        if kind == "answer":
            right, overlap = exact_match(said, self._answers), f1(said, self._answers)
            if self._scoring == "squad":
                right, overlap = squad_scores(said, self._answers)
            seen = Observation("Right." if right else "Wrong.")
            return Transition(seen, True, right, score=overlap, label="" if right else WRONG)
        if kind == "search":
            self._passages = self._library.search(said)
            return Transition(self._observe(format_passages(self._passages)))
        return Transition(self._observe(f"{REFUSED}{said}"), effective=False)

    def close(self) -> None:
        self._library = None

    def _observe(self, text: str) -> Observation:
        return Observation(text, suggest_actions(self._question, self._passages))


def parse_action(action: str) -> tuple[str, str]:
    """(`search` or `answer`, what) or ("", why not)"""
    kind, _, said = action.strip().partition(" ")
    kind, said = kind.lower(), sanitize(said[: 4 * LONGEST_QUERY])[:LONGEST_QUERY]
    if kind not in ("search", "answer"):
        return "", "neither a search nor an answer"
    if not any(c.isalnum() for c in said):
        return "", f"there is no word to {kind}" if kind == "search" else "the answer is empty"
    return kind, said
