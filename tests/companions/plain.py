"""Greedy merging one sequence at a time: the slow reference for `merge` on long sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from math import log2

from tacit.companions.dictionary import MIN_GAIN_BITS, Dictionary, Phrase, phrase_bits, spell


def merge(weights: Mapping[Phrase, int], skills: tuple[str, ...], max_phrase: int) -> Dictionary:
    """The dictionary of sequences with their multiplicities."""
    occurrences = count_subsequences(weights, max_phrase)
    code = Dictionary(skills, (), max_phrase)
    while True:
        segmented = {s: code.segment(s) for s in weights}
        segments, size = total(weights, code), len(code)

        def pays(saved: int, length: int, segments=segments, size=size) -> bool:
            after = (segments - saved) * log2(size + 1) + phrase_bits(length, len(skills), max_phrase)
            return segments * log2(size) - after > MIN_GAIN_BITS

        pairs: Counter[tuple[Phrase, Phrase]] = Counter()
        for sequence, weight in weights.items():
            for a, b in pairwise(segmented[sequence]):
                if a + b in occurrences and a + b not in code and pays(occurrences[a + b], len(a + b)):
                    pairs[a, b] += weight
        for a, b in sorted(pairs, key=lambda pair: (-pairs[pair], *map(spell, pair), *pair)):
            longer = Dictionary(skills, (*code.merged, a + b), max_phrase)
            if pays(segments - total(weights, longer), len(a + b)):
                code = longer
                break
        else:
            return code


def total(weights: Mapping[Phrase, int], code: Dictionary) -> int:
    return sum(weight * code.seg(sequence) for sequence, weight in weights.items())


def count_subsequences(weights: Mapping[Phrase, int], max_phrase: int) -> Counter[Phrase]:
    """How often each run of two to L skills occurs, including overlaps."""
    found: Counter[Phrase] = Counter()
    for sequence, weight in weights.items():
        for length in range(2, min(max_phrase, len(sequence)) + 1):
            for start in range(len(sequence) - length + 1):
                found[sequence[start : start + length]] += weight
    return found
