"""The E-step: a dictionary by greedy merging, as ReuseRL §3.7 and docs/methods/reuserl.md say, exactly.

    C ← single skills
    repeat: cut every sequence by its minimum segmentation under C, count the adjacent pairs of phrases,
            go through them by count, ties by the pair's text, and add the first p = a∘b that fits L, is not in C and
            strictly lowers L_BDL; until none does

A skill is written as one letter here: a sequence is a word, and a phrase is a piece of it that is quickly found. Words without
p stay cut as they are. And most pairs need not be tried: each use of p can be undone at the price of one more phrase, so it
saves at most as many as it has occurrences.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import log2

from tacit.companions.dictionary.segmentation import Dictionary, Phrase, Sequences, minimum_cut, phrase_bits, spell
from tacit.core.errors import TacitError

STRICTLY = 1e-9
"""bits a merge must save: less is rounding, and would differ between machines"""


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
    """The dictionary of a corpus. Equal sequences are cut once, however many there are."""
    if not corpus:
        raise TacitError("a dictionary is extracted from successes, and there are none.")
    Dictionary(tuple(skills), (), max_phrase).check_known(set().union(*corpus))
    letters = {skill: chr(i) for i, skill in enumerate(skills)}
    words = ["".join(letters[skill] for skill in sequence) for sequence in corpus]
    occurrences = Counter(w[i : i + n] for w in words for n in range(2, max_phrase + 1) for i in range(len(w) - n + 1))
    times, cuts, merged = Counter(words), {word: Cut.into_letters(word) for word in words}, list[str]()

    def in_skills(phrase: str) -> Phrase:
        return tuple(skills[ord(letter)] for letter in phrase)

    def rank(pair: tuple[str, str]) -> tuple[int, str, str, Phrase, Phrase]:
        a, b = map(in_skills, pair)
        return -pairs[pair], spell(a), spell(b), a, b  # skills may have spaces in their names, and then two pairs read alike

    while True:
        segments, size = sum(times[w] * len(cut.phrases) for w, cut in cuts.items()), len(skills) + len(merged)
        least = [least_saving(segments, size, phrase_bits(n, len(skills), max_phrase)) for n in range(max_phrase + 1)]
        pairs = Counter(chain.from_iterable(pairwise(cuts[word].phrases) for word in words))
        could_pay = [(a, b) for a, b in pairs if len(p := a + b) <= max_phrase and occurrences[p] >= least[len(p)]]
        for a, b in sorted((pair for pair in could_pay if "".join(pair) not in merged), key=rank):
            p = a + b
            fresh = {word: cut.with_phrase(p) for word, cut in cuts.items() if p in word}
            saved = sum(times[w] * (len(cuts[w].phrases) - len(cut.phrases)) for w, cut in fresh.items())
            if saved >= least[len(p)]:
                merged.append(p)
                cuts |= fresh
                break
        else:
            code = Dictionary(tuple(skills), tuple(map(in_skills, merged)), max_phrase)
            uses = Counter(chain.from_iterable(cuts[word].phrases for word in words))
            told = {in_skills(phrase): count for phrase, count in uses.items()}
            return Extraction(code, len(corpus), segments, sum(map(len, corpus)), told)


def gain(segments: int, size: int, saved: int, bits: float) -> float:
    """−|B| Δ_BDL: what a phrase of so many bits gains a code of `size` phrases if it saves `saved` of the corpus's segments."""
    after = (segments - saved) * log2(size + 1) + bits
    return segments * log2(size) - after


def least_saving(segments: int, size: int, bits: float) -> int:
    """The fewest segments such a phrase must save to pay; more than there are where it never would."""
    return bisect_left(range(segments + 1), True, key=lambda saved: gain(segments, size, saved, bits) > STRICTLY)


@dataclass(frozen=True)
class Cut:
    """A word under a code."""

    word: str
    ways: list[tuple[int, ...]]
    """for each letter, the lengths of the phrases of two or more that end with it, shortest first"""
    phrases: list[str]
    """the minimum segmentation"""

    @classmethod
    def into_letters(cls, word: str) -> Cut:
        return cls(word, [()] * len(word), list(word))

    def with_phrase(self, phrase: str) -> Cut:
        ways, start = self.ways.copy(), self.word.find(phrase)
        while start >= 0:
            end = start + len(phrase) - 1
            ways[end] = tuple(sorted((*ways[end], len(phrase))))
            start = self.word.find(phrase, start + 1)
        return Cut(self.word, ways, [self.word[a:b] for a, b in pairwise(minimum_cut(ways))])
