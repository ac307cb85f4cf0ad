"""The passages of a task and what finds them, kept while they are asked: a generated land, or a corpus of a file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.environments.searchqa.land import make_land
from tacit.environments.searchqa.observed import Passage
from tacit.environments.searchqa.published import corpus_of, data_root, digest_of
from tacit.environments.searchqa.retrieval import Dense, Encode, Retriever, make_retriever

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
