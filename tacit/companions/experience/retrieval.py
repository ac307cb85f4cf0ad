"""Which entry guides an episode: near by meaning, and not always the same one (Eq. 6).

s(m) = s_rank(m) − λ log(1 + c(m)) − 1[recent(m)]          s_rank = −rank among the N · K nearest
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Literal, Protocol

import numpy as np

from tacit.companions.experience.bank import Bank, Entry, Usage
from tacit.core.resources import Encode
from tacit.credit.embedders import HashNgram

# Which entries were used most, and which those they guided won and lost with.
#
# An entry that guides easy tasks wins with or without merit: these are counts of what happened, not of what it caused.

Order = Literal["use", "useful", "harmful"]
ORDERS: dict[Order, Callable[[Usage], tuple[int, ...]]] = {
    "use": lambda u: (u.retrieved, u.wins + u.losses),
    "useful": lambda u: (u.wins - u.losses, u.wins),
    "harmful": lambda u: (u.losses - u.wins, u.losses),
}


def rank_entries(bank: Bank, order: Order) -> list[tuple[Entry, Usage]]:
    """The living, first first, older before newer where they are equal; by what they did only those that guided somebody, and
    as useful only those that won more often than they lost, as harmful the other way round."""
    measure = ORDERS[order]
    found = [(entry, bank.usage[entry.id]) for entry in bank.entries.values()]
    if order != "use":
        found = [(entry, usage) for entry, usage in found if measure(usage)[0] > 0]
    return sorted(found, key=lambda pair: (*(-value for value in measure(pair[1])), pair[0].id))


# Texts as vectors, by one interface: a sentence encoder, here or behind an endpoint, or for tests and tiny policies the counts
# of character n-grams.


class Embedding(Protocol):
    @property
    def name(self) -> str:
        """what a bank says its vectors were made with"""
        ...

    @property
    def dimensions(self) -> int: ...

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """[N, D]"""
        ...


@dataclass(frozen=True)
class NgramEmbedding:
    """Counts of character n-grams: texts that share words are near. Needs no model."""

    n: int = 3
    dimensions: int = 384

    @property
    def name(self) -> str:
        return f"{self.n}-grams"

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return HashNgram(self.n, self.dimensions).texts(texts)


class SentenceEmbedding:
    """A frozen sentence encoder; it is asked for its size once it is first used."""

    def __init__(self, name: str, encode: Encode) -> None:
        self.name, self._encode, self._dimensions = name, encode, 0

    @property
    def dimensions(self) -> int:
        self._dimensions = self._dimensions or self._encode(["size"]).shape[1]
        return self._dimensions

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return np.asarray(self._encode(texts), np.float32)


_SERVED = " (endpoint)"


def endpoint_embedding_name(model: str) -> str:
    """What a bank says of a model behind an endpoint. Not where it was: a server may move, and its vectors stay the same."""
    return model + _SERVED


def parse_endpoint_model(name: str) -> str | None:
    """The model of such a name; None where it is another one's."""
    return name.removesuffix(_SERVED) if name.endswith(_SERVED) else None


class CachedEmbedding:
    """The same, each text once: the members of a group all ask with the same words. Any number of threads may ask."""

    def __init__(self, embedding: Embedding, most: int = 10_000) -> None:
        self._embedding, self._most = embedding, most
        self._known: dict[str, np.ndarray] = {}
        self._keeping = threading.Lock()
        self.asked = self.computed = 0

    @property
    def name(self) -> str:
        return self._embedding.name

    @property
    def dimensions(self) -> int:
        return self._embedding.dimensions

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        with self._keeping:
            known = {text: self._known[text] for text in texts if text in self._known}
            new = [text for text in dict.fromkeys(texts) if text not in known]
            self.asked, self.computed = self.asked + len(texts), self.computed + len(new)
        if new:  # outside the lock: what is known need not wait for what is not
            fresh = dict(zip(new, self._embedding(new), strict=True))
            known |= fresh
            with self._keeping:
                self._known |= fresh
                while len(self._known) > self._most:
                    self._known.pop(next(iter(self._known)))
        return np.stack([known[text] for text in texts]) if len(texts) else np.zeros((0, self.dimensions), np.float32)


@dataclass(frozen=True)
class Diversity:
    candidates: int = 16
    """how many of the nearest are looked at for each that is wanted: N"""
    penalty: float = 0.4
    """λ: what having been retrieved before costs"""
    recency: int = 1
    """iterations within which an entry counts as recent"""


def retrieve(
    bank: Bank, embedding: Embedding, queries: Sequence[str], step: int, diversity: Diversity, count: bool = True
) -> list[Entry | None]:
    """One entry for each query, None where the bank is empty. Each choice counts before the next is made, so that members
    of a group, who ask the same, get different entries; `count=False` (an evaluation) leaves no trace.

    Others may write meanwhile: this is of the bank as it was at one moment, and finds what was there then."""
    seen = bank.snapshot()
    if not seen.entries or not queries:
        return [None] * len(queries)
    texts = list(dict.fromkeys(queries))
    near = dict(zip(texts, seen.nearest(embedding(texts), diversity.candidates), strict=True))
    chosen: list[Entry | None] = []
    handed = Counter[int]()
    for query in queries:
        living = near[query]
        scores = [score(bank, e.id, rank, step, diversity, handed[e.id]) for rank, e in enumerate(living)]
        best = max(range(len(living)), key=lambda i: (scores[i], -living[i].id), default=None)
        chosen.append(None if best is None else living[best])
        if best is not None and count:
            handed[living[best].id] += 1
    if handed:  # in one transaction: a burst of queries waits for the disk once
        bank.happened("retrieved", list(handed.elements()), step)
    return chosen


def score(bank: Bank, number: int, rank: int, step: int, diversity: Diversity, handed: int = 0) -> float:
    """s(m); `rank` from 0, `handed`: how often it was handed out in this step without being counted yet."""
    usage = bank.usage.get(number) or Usage()
    last = step if handed else usage.last_retrieved
    recent = step - last < diversity.recency
    return -rank - diversity.penalty * log(1 + usage.retrieved + handed) - float(recent)
