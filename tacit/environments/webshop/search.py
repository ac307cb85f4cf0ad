"""Finds products by words: BM25 as the original's search engine has it, without a JVM.

There it is Lucene through Pyserini with its defaults, which are: words in small letters, without 33 stop words, stemmed by
Porter's rules; k₁ = 0.9, b = 0.4; the fifty best that share a word with the query. Here it is `bm25s` with Lucene's variant of
the formula; words are cut at everything that is no letter or digit, a possessive 's is dropped. Equal scores are in the order
of the catalogue.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tacit.core.bm25 import load_bm25s
from tacit.core.errors import TacitError

K1, B = 0.9, 0.4
MOST_HITS = 50
LONGEST_QUERY = 64
"""words that are looked at; no instruction has as many"""
_KEPT = 4096
"""queries whose answers are remembered: the members of a group often ask the same"""
_WORD = re.compile(r"[^\W_]+")
_POSSESSIVE = re.compile(r"[’']s\b")
_STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they
this to was will with
"""
_STOP = frozenset(_STOP_WORDS.split())


class Index:
    """An inverted index over texts; immutable once made."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._stemmer = _package("Stemmer", "PyStemmer").Stemmer("porter")
        self._size = len(texts)
        self._bm25 = load_bm25s().BM25(method="lucene", k1=K1, b=B)
        if texts:
            self._bm25.index([self.words(text) or [""] for text in texts], show_progress=False)
        self.find = lru_cache(_KEPT)(self._find)
        """query -> positions of the best texts, best first"""

    def words(self, text: str) -> list[str]:
        """`The women's Blouses` -> women, blous"""
        plain = _POSSESSIVE.sub("", text.lower())
        stems = self._stemmer.stemWords([word for word in _WORD.findall(plain) if word not in _STOP])
        return [stem for stem in stems if stem]  # of `s` Porter's rules leave nothing

    def _find(self, query: str) -> tuple[int, ...]:
        words = self.words(query)[:LONGEST_QUERY]
        if not words or not self._size:
            return ()
        scores = self._bm25.get_scores(words)
        best = np.argsort(-scores, kind="stable")[:MOST_HITS]
        return tuple(int(place) for place in best if scores[place] > 0)


def _package(module: str, name: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise TacitError(
            f"the shop's search needs the package {name}, which is not installed: `pip install {name}`."
        ) from error
