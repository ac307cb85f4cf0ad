"""Retrieval: choose the entry that guides an episode, by similarity and diversity (Eq. 6). Also embeddings and rankings.

s(m) = s_rank(m) − λ log(1 + c(m)) − 1[recent(m)]          s_rank = −rank among the N · K nearest

Rank outweighs the penalties: by Eq. 6 alone one entry gets most of the retrievals of a query. The authors' code therefore
passes over the best entry with a probability of 0.5 if it is recent (`Diversity.demotion`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from random import Random
from typing import Literal, Protocol

import numpy as np

from tacit.companions.experience.bank import Bank, Entry, Usage
from tacit.core.method import Encode
from tacit.credit.partitions import HashNgram

Order = Literal["use", "useful", "harmful"]
ORDERS: dict[Order, Callable[[Usage], tuple[int, ...]]] = {
    "use": lambda u: (u.retrieved, u.wins + u.losses),
    "useful": lambda u: (u.wins - u.losses, u.wins),
    "harmful": lambda u: (u.losses - u.wins, u.losses),
}


def rank_entries(bank: Bank, order: Order) -> list[tuple[Entry, Usage]]:
    """Live entries by `order`, ties by age. `useful` has only those with more wins than losses, `harmful` the reverse."""
    measure = ORDERS[order]
    ranked = [(entry, bank.usage[entry.id]) for entry in bank.entries.values()]
    if order != "use":
        ranked = [(entry, usage) for entry, usage in ranked if measure(usage)[0] > 0]
    return sorted(ranked, key=lambda pair: (*(-value for value in measure(pair[1])), pair[0].id))


class Embedding(Protocol):
    """N texts -> [N, D]"""

    @property
    def name(self) -> str: ...  # stored in the bank

    @property
    def dimensions(self) -> int: ...

    def __call__(self, texts: Sequence[str]) -> np.ndarray: ...


@dataclass(frozen=True)
class NgramEmbedding:
    """Counts of character n-grams: texts that share words are near. For tests and tiny policies; needs no model."""

    n: int = 3
    dimensions: int = 384

    @property
    def name(self) -> str:
        return f"{self.n}-grams"

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return HashNgram(self.n, self.dimensions).texts(texts)


class SentenceEmbedding:
    """A frozen sentence encoder, local or behind an endpoint."""

    def __init__(self, name: str, encode: Encode) -> None:
        self.name, self._encode, self._dimensions = name, encode, 0

    @property
    def dimensions(self) -> int:
        self._dimensions = self._dimensions or self._encode(["size"]).shape[1]
        return self._dimensions

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return np.asarray(self._encode(texts), np.float32)


ENDPOINT = " (endpoint)"
"""suffix of the stored name of an endpoint's model; the URL is left out, since a server can move and keep its vectors"""


class CachedEmbedding:
    """Caches an embedding: all members of a group query with the same text. Thread-safe."""

    def __init__(self, embedding: Embedding, max_texts: int = 10_000) -> None:
        self._embedding, self._max_texts = embedding, max_texts
        self._cache: dict[str, np.ndarray] = {}
        self.lock = threading.Lock()

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        with self.lock:
            vectors = {text: self._cache[text] for text in texts if text in self._cache}
            new = [text for text in dict.fromkeys(texts) if text not in vectors]
        if new:  # outside the lock, so that cached texts do not wait
            computed = dict(zip(new, self._embedding(new), strict=True))
            vectors |= computed
            with self.lock:
                self._cache |= computed
                while len(self._cache) > self._max_texts:
                    self._cache.pop(next(iter(self._cache)))
        if not len(texts):
            return np.zeros((0, self._embedding.dimensions), np.float32)
        return np.stack([vectors[text] for text in texts])


Scope = Literal["bank", "world", "family"]


def scope_key(scope: Scope, world: str, family: str) -> tuple[str, ...]:
    """The key of a scope, within which entries are searched or merged: (), (world,) or (world, family)."""
    return (world, family)[: ("bank", "world", "family").index(scope)]


@dataclass(frozen=True)
class Query:
    text: str
    world: str = ""
    family: str = ""
    seed: int | None = None  # seed of the choice to skip a recent entry; None never skips


@dataclass(frozen=True)
class Diversity:
    candidates: int = 16  # N: nearest entries considered per query
    penalty: float = 0.4  # λ: penalty for earlier retrievals
    recency: int = 3  # iterations within which a retrieval counts as recent
    demotion: float = 0.5  # probability of skipping the best entry in favor of the second if it is recent
    scope: Scope = "world"  # entries that a query searches: all, those of its world, or those of its family
    shuffled: bool = False  # return random entries of the scope instead of near ones, as a control for their content


def retrieve(
    bank: Bank, embedding: Encode, queries: Sequence[Query], step: int, diversity: Diversity, count: bool = True
) -> list[Entry | None]:
    """One entry per query; None if there is none in its scope. Each choice counts before the next, so that members of a group,
    who have the same query, get different entries. `count=False` (evaluation) records nothing. Uses one snapshot, so concurrent
    writes do not interfere."""
    snapshot = bank.snapshot
    if not snapshot.entries or not queries:
        return [None] * len(queries)
    scopes = [scope_key(diversity.scope, query.world, query.family) for query in queries]
    if diversity.shuffled:
        pools = {scope: [entry for entry in snapshot.entries if entry.origin.is_in(scope)] for scope in dict.fromkeys(scopes)}
        rngs = [Random(f"{query.seed} {query.text}") for query in queries]
        drawn = [rng.choice(pools[scope]) if pools[scope] else None for rng, scope in zip(rngs, scopes, strict=True)]
        bank.record("retrieved", [entry.id for entry in drawn if entry is not None] if count else [], step)
        return drawn
    nearest: dict[tuple[tuple[str, ...], str], list[Entry]] = {}
    for scope in dict.fromkeys(scopes):
        texts = list(dict.fromkeys(query.text for query, s in zip(queries, scopes, strict=True) if s == scope))
        results = snapshot.nearest(embedding(texts), diversity.candidates, scope)
        nearest |= {(scope, text): entries for text, entries in zip(texts, results, strict=True)}
    chosen: list[Entry | None] = []
    uncounted = Counter[int]()
    for query, scope in zip(queries, scopes, strict=True):
        ranked = enumerate(nearest[scope, query.text])
        scores = {entry: score(bank, entry.id, rank, step, diversity, uncounted[entry.id]) for rank, entry in ranked}
        best = sorted(scores, key=lambda entry: (-scores[entry], entry.id))[:2]
        if len(best) == 2 and query.seed is not None and is_recent(bank, best[0].id, step, diversity, uncounted[best[0].id]):
            best = best[Random(query.seed).random() < diversity.demotion :]
        chosen.append(best[0] if best else None)
        if best and count:
            uncounted[best[0].id] += 1
    if uncounted:  # one transaction for all queries
        bank.record("retrieved", list(uncounted.elements()), step)
    return chosen


def score(bank: Bank, number: int, rank: int, step: int, diversity: Diversity, uncounted: int = 0) -> float:
    """s(m). `rank` counts from 0; `uncounted`: retrievals in this step that the bank has not recorded yet."""
    retrieved = (bank.usage.get(number) or Usage()).retrieved + uncounted
    return -rank - diversity.penalty * log(1 + retrieved) - float(is_recent(bank, number, step, diversity, uncounted))


def is_recent(bank: Bank, number: int, step: int, diversity: Diversity, uncounted: int = 0) -> bool:
    last = step if uncounted else (bank.usage.get(number) or Usage()).last_retrieved
    return step - last < diversity.recency
