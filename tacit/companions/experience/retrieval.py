"""Which entry guides an episode: near by meaning, and not always the same one (Eq. 6).

s(m) = s_rank(m) − λ log(1 + c(m)) − 1[recent(m)]          s_rank = −rank among the N · K nearest
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from tacit.companions.experience.bank import Bank
from tacit.companions.experience.embedding import Embedding
from tacit.companions.experience.entries import Entry, Usage


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
