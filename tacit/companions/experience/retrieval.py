"""Which entry guides an episode: near by meaning, and not always the same one (Eq. 6).

s(m) = s_rank(m) − λ log(1 + c(m)) − 1[recent(m)]          s_rank = −rank among the N · K nearest
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from tacit.companions.experience.bank import Bank
from tacit.companions.experience.embedding import Embedding
from tacit.companions.experience.entries import Entry


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
    of a group, who ask the same, get different entries; `count=False` (an evaluation) leaves no trace."""
    if not len(bank) or not queries:
        return [None] * len(queries)
    near = bank.nearest(embedding(queries), diversity.candidates)
    chosen: list[Entry | None] = []
    for ids in near:
        living = [number for number in ids if number in bank.entries]
        best = max(
            living, key=lambda number: (score(bank, number, living.index(number), step, diversity), -number), default=None
        )
        if best is not None and count:
            bank.happened("retrieved", [best], step)
        chosen.append(None if best is None else bank.entries[best])
    return chosen


def score(bank: Bank, number: int, rank: int, step: int, diversity: Diversity) -> float:
    """s(m); `rank` from 0."""
    usage = bank.usage[number]
    recent = step - usage.last_retrieved < diversity.recency
    return -rank - diversity.penalty * log(1 + usage.retrieved) - float(recent)
