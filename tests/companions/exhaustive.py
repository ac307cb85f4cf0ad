"""The best dictionary there is, by a search that leaves none out (ReuseRL §F.1). Exponential: for small corpora only.

    all_singletons   every single skill stays, as in greedy merging: the minimum of Eq. 4 over the class it searches
    original         single skills may go where longer phrases cover each of their occurrences: the true minimum of L_BDL

Each phrase is in or out. A branch is left only where nothing in it can beat the best dictionary known. That is seen from a
relaxation: of all dictionaries with k phrases more than the chosen ones C, each fresh phrase p is hired by the use, at the
fee bits(p) / (most uses of p), so that no dictionary pays more for it than it would have to. With a rent of μ bits on each of
the k, given back at the end, the cheapest way to spell each sequence bounds them all from below, whatever μ is:

    |B| L_BDL ≥ bits(C) − μ k + Σ_s min over spellings of Σ_phrases (log₂(|C| + k) + fee)
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
"""μ to try, those that are most often enough first"""


@dataclass(frozen=True)
class Optimum:
    """The phrases of a best dictionary, single skills included where they stayed, and its L_BDL."""

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
        """by sequence and end: where the last phrase can begin, and which it is"""
        # The single skills that occur spell everything: something to beat from the start.
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
                return  # dearer than the best even if every sequence were one phrase, and more so with more phrases
            hired = self._relax(chosen, open_, bits, more, index)
            if hired is not None:
                # With it, then without: between them, every dictionary of this branch.
                self._descend((*chosen, hired), open_ - {hired})
                self._descend(chosen, open_ - {hired})
                return

    def _relax(self, chosen: tuple[int, ...], open_: frozenset[int], bits: float, more: int, index: float) -> int | None:
        """The open phrase that saves most in the relaxation, or None where that rules all dictionaries of this size out."""
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
        """|B| L_BDL of a dictionary; infinite where it cannot spell the corpus."""
        cost = [inf] * len(self._phrases)
        for i in phrases:
            cost[i] = 1.0
        return sum(self._bits[i] for i in phrases) + self._spell(cost)[0] * log2(len(phrases))

    def _spell(self, cost: Sequence[float]) -> tuple[float, Counter[int]]:
        """The cheapest spelling of the corpus, and which phrases it uses how often."""
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
    """How many occurrences of the phrase fit into the sequence beside each other."""
    found, start = 0, 0
    while start + len(phrase) <= len(sequence):
        if sequence[start : start + len(phrase)] == phrase:
            found, start = found + 1, start + len(phrase)
        else:
            start += 1
    return found
