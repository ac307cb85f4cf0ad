"""Which passages a query finds: BM25, or nearness of vectors, behind one protocol.

    bm25      score(q, d) = Σ_w idf(w) · tf(w, d) / (tf(w, d) + k₁(1 − b + b|d|/|d̄|)), k₁ = 1.5, b = 0.75   (bm25s)
    ngrams    cosine of hashed character n-grams; learns nothing and needs nothing
    any other name is a sentence encoder, a directory or a hub id: cosine of its vectors   (extra `sentences`)

Equal scores are told apart by the order of the passages, so that every machine finds the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tacit.core.bm25 import load_bm25s
from tacit.core.errors import TacitError, install

Encode = Callable[[Sequence[str]], np.ndarray]
"""N texts -> [N, D]"""

_WORD = re.compile(r"\w+")
_STOPWORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "been", "by", "did", "do", "does", "for", "from", "how", "in", "is",
    "it", "its", "of", "on", "or", "that", "the", "this", "to", "was", "were", "what", "when", "where", "which",
    "who", "whom", "whose", "why", "with",
))  # fmt: skip


class Retriever(Protocol):
    def find(self, query: str, count: int) -> Sequence[int]:
        """The numbers of the passages that fit best, best first; fewer where fewer fit at all."""
        ...


class Bm25:
    def __init__(self, texts: Sequence[str]) -> None:
        self._ids: dict[str, int] = {}
        rows = [[self._ids.setdefault(word, len(self._ids)) for word in words(text)] for text in texts]
        bm25s = load_bm25s()
        self._index = bm25s.BM25(k1=1.5, b=0.75)
        self._index.index(bm25s.tokenization.Tokenized(ids=rows, vocab=self._ids), show_progress=False)

    def find(self, query: str, count: int) -> Sequence[int]:
        scores_N = self.scores(query)
        return () if scores_N is None else _best(scores_N, count)

    def scores(self, query: str) -> np.ndarray | None:
        """Of every passage; None where no passage has a word of the query."""
        ids = [self._ids[word] for word in words(query) if word in self._ids]
        return self._index.get_scores_from_ids(ids) if ids else None


class Dense:
    """Nearness of vectors. `by_spread` divides each dimension by its spread over the passages: where nothing was learned, what
    all passages share tells none apart."""

    def __init__(self, texts: Sequence[str], encode: Encode, by_spread: bool = False) -> None:
        self._encode = encode
        vectors_ND = np.asarray(encode(texts), dtype=np.float32)
        spread_D = vectors_ND.std(axis=0)
        self._weights_D = (
            1.0 / np.maximum(spread_D, 1e-3 * spread_D.max()) if by_spread and spread_D.any() else np.ones_like(spread_D)
        )
        self._vectors_ND = _unit(vectors_ND * self._weights_D)

    def find(self, query: str, count: int) -> Sequence[int]:
        vector_D = np.asarray(self._encode([query]), dtype=np.float32)[0] * self._weights_D
        return _best(self._vectors_ND @ (vector_D / max(np.linalg.norm(vector_D), 1e-9)), count) if vector_D.any() else ()


class Ngrams:
    """Character n-grams of a text's words, hashed with a sign into `dims` dimensions: 1 + log(how often) of each."""

    def __init__(self, dims: int = 4096, sizes: Sequence[int] = (3, 4, 5)) -> None:
        self._dims, self._sizes = dims, tuple(sizes)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        vectors_ND = np.zeros((len(texts), self._dims), np.float32)
        for row_D, text in zip(vectors_ND, texts, strict=True):
            grams, counts = np.unique(self._hashes(text), return_counts=True)
            signs = 1.0 - 2.0 * (grams >> np.uint64(63)).astype(np.float32)
            np.add.at(row_D, (grams % np.uint64(self._dims)).astype(np.int64), signs * (1.0 + np.log(counts)))
        return _unit(vectors_ND)

    def _hashes(self, text: str) -> np.ndarray:
        """Polynomials of each window's bytes, mixed; wrapping around 2⁶⁴ is meant."""
        joined = f" {' '.join(_WORD.findall(text.lower()))} ".encode("utf-8", "ignore")
        data = np.frombuffer(joined, np.uint8).astype(np.uint64)
        found = []
        for size in self._sizes:
            windows = max(len(data) - size + 1, 0)
            hashed = np.full(windows, size, np.uint64)
            for k in range(size):
                hashed = hashed * np.uint64(1099511628211) + data[k : k + windows]
            hashed ^= hashed >> np.uint64(29)
            hashed *= np.uint64(0xBF58476D1CE4E5B9)
            found.append(hashed ^ (hashed >> np.uint64(32)))
        return np.concatenate(found)


class Sentences:
    """A sentence encoder of the `sentence-transformers` library."""

    def __init__(self, name: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise TacitError(
                f"the retriever {name!r} is none of {', '.join(RETRIEVERS)}, so it is a sentence encoder, and those need "
                f"sentence-transformers: {install('sentences')}."
            ) from error
        try:
            self._model: Any = SentenceTransformer(name, device="cpu")
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise TacitError(
                f"cannot load the sentence encoder {name!r}: {reason} Or choose {' or '.join(RETRIEVERS)}."
            ) from error

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return self._model.encode(list(texts), convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False)


RETRIEVERS: dict[str, Callable[[Sequence[str]], Retriever]] = {
    "bm25": Bm25,
    "ngrams": lambda texts: Dense(texts, Ngrams(), by_spread=True),
}


def make_retriever(name: str, texts: Sequence[str]) -> Retriever:
    """A retriever over these texts, by its name."""
    return RETRIEVERS[name](texts) if name in RETRIEVERS else Dense(texts, Sentences(name))


def words(text: str) -> list[str]:
    """What is looked up: lower case, without the words every text has."""
    return [word for word in _WORD.findall(text.lower()) if word not in _STOPWORDS]


def _best(scores_N: np.ndarray, count: int) -> list[int]:
    """Rounded before they are compared: sums in another order must not change who comes first."""
    rounded_N = np.round(scores_N.astype(np.float64), 4)
    order = np.argsort(-rounded_N, kind="stable")[:count]
    return [int(i) for i in order if rounded_N[i] > 0]


def _unit(vectors_ND: np.ndarray) -> np.ndarray:
    return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-9)
