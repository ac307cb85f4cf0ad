"""The optimal dictionary by exact branch and bound (ReuseRL §F.1). Exponential: for small corpora only.

    all_singletons   keeps every single skill, as greedy merging does: the minimum of Eq. 4 over that class
    original         may drop single skills that longer phrases cover everywhere: the true minimum of L_BDL

Each phrase is in or out. A branch is pruned if a lower bound shows that it cannot beat the best known dictionary. The bound
comes from a relaxation over all dictionaries with k phrases more than the chosen ones C. Each open phrase p pays its bits per
use: fee = (bits(p) + μ) / (most uses of p). It never pays more in total than its bits + μ. The multiplier μ is subtracted k
times. The cheapest segmentations then give a lower bound for any μ:

    |B| L_BDL ≥ bits(C) − μ k + Σ_s min over segmentations of Σ_phrases (log₂(|C| + k) + fee)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log2

from plain import count_subsequences

from tacit.companions.dictionary import MIN_GAIN_BITS, Phrase, Sequences, phrase_bits
from tacit.core.errors import TacitError

RENTS = (8.0, 14.0, 4.0, 20.0, 0.0, 30.0, 50.0)
"""values of μ to try, the most often sufficient first"""


@dataclass(frozen=True)
class Optimum:
    """The phrases of an optimal dictionary, with the single skills it keeps, and its L_BDL."""

    phrases: tuple[Phrase, ...]
    description_length: float

    @property
    def merged(self) -> tuple[Phrase, ...]:
        return tuple(p for p in self.phrases if len(p) > 1)


def all_singletons(corpus: Sequences, skills: Sequence[str], max_phrase: int = 4) -> Optimum:
    """BF-all-singletons."""
    return Search(corpus, skills, max_phrase, kept=skills).run()


def original(corpus: Sequences, skills: Sequence[str], max_phrase: int = 4) -> Optimum:
    """BF-original."""
    return Search(corpus, skills, max_phrase, kept=()).run()


class Search:
    def __init__(self, corpus: Sequences, skills: Sequence[str], max_phrase: int, kept: Sequence[str]) -> None:
        if not corpus or not all(corpus):
            raise TacitError("the best dictionary of a corpus needs at least one success, and none without a skill.")
        weights = Counter(corpus)
        self._weights, self._corpus = list(weights.values()), len(corpus)
        seen = {skill for sequence in weights for skill in sequence}
        self._phrases = [(s,) for s in skills if s in seen or s in kept] + sorted(count_subsequences(weights, max_phrase))
        number = {phrase: i for i, phrase in enumerate(self._phrases)}
        self._bits = [phrase_bits(len(p), len(skills), max_phrase) for p in self._phrases]
        self._most_uses = [max(1, sum(w * disjoint(s, p) for s, w in weights.items())) for p in self._phrases]
        self._kept = tuple(number[skill,] for skill in kept)
        self._spellings = [
            [
                [(start, number[s[start:end]]) for start in range(max(0, end - max_phrase), end) if s[start:end] in number]
                for end in range(1, len(s) + 1)
            ]
            for s in weights
        ]
        """per sequence and end position: (start, phrase number) of each phrase that can end there"""
        # The initial upper bound: all single skills that occur.
        self._best = tuple(sorted({*self._kept, *(number[skill,] for skill in seen)}))
        self._best_bits = self._total(self._best)

    def run(self) -> Optimum:
        self._descend(self._kept, frozenset(range(len(self._phrases))).difference(self._kept))
        return Optimum(tuple(self._phrases[i] for i in self._best), self._best_bits / self._corpus)

    def _descend(self, chosen: tuple[int, ...], open_: frozenset[int]) -> None:
        if chosen:
            total = self._total(chosen)
            if total < self._best_bits - MIN_GAIN_BITS:
                self._best, self._best_bits = chosen, total
        bits = sum(self._bits[i] for i in chosen)
        cheapest = min((self._bits[i] for i in open_), default=inf)
        for more in range(1, len(open_) + 1):
            index = log2(len(chosen) + more)
            if bits + more * cheapest + sum(self._weights) * index >= self._best_bits - MIN_GAIN_BITS:
                return  # above the best even with one phrase per sequence; more phrases cost more
            hired = self._relax(chosen, open_, bits, more, index)
            if hired is not None:
                # Branch: with the phrase, then without it.
                self._descend((*chosen, hired), open_ - {hired})
                self._descend(chosen, open_ - {hired})
                return

    def _relax(self, chosen: tuple[int, ...], open_: frozenset[int], bits: float, more: int, index: float) -> int | None:
        """The open phrase that saves most in the relaxation, or None if the bound prunes all dictionaries of this size."""
        highest, hired = -inf, None
        for rent in RENTS:
            cost = [inf] * len(self._phrases)
            for i in open_:
                cost[i] = index + (self._bits[i] + rent) / self._most_uses[i]
            for i in chosen:
                cost[i] = index
            spelled, uses = self._spell(cost)
            bound = bits - rent * more + spelled
            if bound >= self._best_bits - MIN_GAIN_BITS:
                return None
            fresh = [i for i in uses if i in open_]
            if bound > highest and fresh:
                highest, hired = bound, max(fresh, key=lambda i: (uses[i] * len(self._phrases[i]), -i))
        return min(open_) if hired is None else hired

    def _total(self, phrases: tuple[int, ...]) -> float:
        """|B| L_BDL of a dictionary; infinite if it cannot segment the corpus."""
        cost = [inf] * len(self._phrases)
        for i in phrases:
            cost[i] = 1.0
        return sum(self._bits[i] for i in phrases) + self._spell(cost)[0] * log2(len(phrases))

    def _spell(self, cost: Sequence[float]) -> tuple[float, Counter[int]]:
        """Cost of the cheapest segmentation of the corpus, and how often it uses each phrase."""
        total, uses = 0.0, Counter[int]()
        for weight, ends in zip(self._weights, self._spellings, strict=True):
            best, last = [0.0], [(0, 0)]
            for ways in ends:
                cheapest = min((best[start] + cost[i], start, i) for start, i in ways)
                best.append(cheapest[0])
                last.append(cheapest[1:])
            if best[-1] == inf:
                return inf, uses
            total += weight * best[-1]
            end = len(ends)
            while end:
                end, phrase = last[end]
                uses[phrase] += weight
        return total, uses


def disjoint(sequence: Phrase, phrase: Phrase) -> int:
    """Number of non-overlapping occurrences of the phrase in the sequence."""
    found, start = 0, 0
    while start + len(phrase) <= len(sequence):
        if sequence[start : start + len(phrase)] == phrase:
            found, start = found + 1, start + len(phrase)
        else:
            start += 1
    return found
