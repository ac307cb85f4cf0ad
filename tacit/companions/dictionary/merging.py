"""The E-step: a dictionary by greedy merging, as ReuseRL §3.7 and docs/methods/reuserl.md say, exactly.

    C ← single skills
    repeat: cut every sequence by its minimum segmentation under C, count the adjacent pairs of phrases,
            go through them by count, ties by the pair's text, and add the first p = a∘b that fits L, is not in C and
            strictly lowers L_BDL; until none does

Most pairs need no dynamic programme to be judged. Each use of a new phrase a∘b can be undone at the price of one more
phrase, so what it saves is at most how often it occurs in the corpus (and at least how often a and b now stand together,
where a ≠ b). Pairs that cannot pay for themselves are never tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2

from tacit.companions.dictionary.ledger import Ledger, rank
from tacit.companions.dictionary.merging_columns import merge_many
from tacit.companions.dictionary.segmentation import Dictionary, Phrase, Sequences
from tacit.core.errors import TacitError

FEW_SKILLS = 600
"""up to here plain Python is done before arrays have been set up"""


@dataclass(frozen=True)
class Extraction:
    """A dictionary, and what the corpus it came from looks like in it."""

    dictionary: Dictionary
    sequences: int
    """|B|"""
    segments: int
    """Σ seg(s, C) over the corpus"""
    skills: int
    """Σ |s|"""
    uses: Mapping[Phrase, int]
    """how often each phrase stands in the segmented corpus"""

    @property
    def description_length(self) -> float:
        """L_BDL, Eq. 3."""
        return (self.dictionary.bits + self.segments * log2(len(self.dictionary))) / self.sequences


def merge(corpus: Sequences, skills: Sequence[str], max_phrase: int = 4) -> Extraction:
    """The dictionary of a corpus. Equal sequences are handled once, however many there are."""
    if not corpus:
        raise TacitError("a dictionary is extracted from successes, and there are none.")
    weights = Counter(corpus)
    Dictionary(tuple(skills), (), max_phrase).check_known(set().union(*weights))
    if sum(map(len, weights)) <= FEW_SKILLS:
        dictionary, uses = merge_few(weights, tuple(skills), max_phrase)
    else:
        dictionary, uses = merge_many(weights, tuple(skills), max_phrase)
    return Extraction(dictionary, len(corpus), sum(uses.values()), sum(map(len, corpus)), uses)


def merge_few(weights: Mapping[Phrase, int], skills: tuple[str, ...], max_phrase: int) -> tuple[Dictionary, Counter[Phrase]]:
    """The dictionary of sequences with their multiplicities, and its uses; for corpora of some hundred skills."""
    ledger = Ledger(len(skills), max_phrase)
    occurrences = count_subsequences(weights, max_phrase)
    code = Dictionary(skills, (), max_phrase)
    segmented: dict[Phrase, tuple[Phrase, ...]] = {s: tuple(zip(s, strict=True)) for s in weights}  # phrases of one skill
    while True:
        segments = _total(weights, segmented)
        needed = {length: ledger.least_saving(segments, len(code), length) for length in range(2, max_phrase + 1)}
        could_pay = {p for p, count in occurrences.items() if count >= needed[len(p)] and p not in code}
        pairs: Counter[tuple[Phrase, Phrase]] = Counter()
        for sequence, weight in weights.items() if could_pay else ():
            for a, b in pairwise(segmented[sequence]):
                if a + b in could_pay:
                    pairs[a, b] += weight
        for a, b in sorted(pairs, key=lambda pair: rank(pairs[pair], *pair)):
            longer = Dictionary(skills, (*code.merged, a + b), max_phrase)
            trial = {s: longer.segment(s) for s in weights}
            if ledger.pays(segments, len(code), segments - _total(weights, trial), len(a + b)):
                code, segmented = longer, trial
                break
        else:
            uses: Counter[Phrase] = Counter()
            for sequence, weight in weights.items():
                for phrase in segmented[sequence]:
                    uses[phrase] += weight
            return code, uses


def count_subsequences(weights: Mapping[Phrase, int], max_phrase: int) -> Counter[Phrase]:
    """Every run of two to L skills, with how often it occurs, overlapping ones included."""
    found: Counter[Phrase] = Counter()
    for sequence, weight in weights.items():
        for length in range(2, min(max_phrase, len(sequence)) + 1):
            for start in range(len(sequence) - length + 1):
                found[sequence[start : start + length]] += weight
    return found


def _total(weights: Mapping[Phrase, int], segmented: Mapping[Phrase, Sequence[Phrase]]) -> int:
    return sum(weight * len(segmented[s]) for s, weight in weights.items())
