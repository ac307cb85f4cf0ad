"""Which pair of phrases comes first, and whether merging it pays."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2

from tacit.companions.dictionary.segmentation import Phrase, phrase_bits, spell

STRICTLY = 1e-9
"""bits a merge must save: less is rounding, and would differ between machines"""


@dataclass(frozen=True)
class Ledger:
    """What a phrase more would cost and save, in bits of the whole corpus (Eq. 3 times |B|)."""

    alphabet: int
    max_phrase: int

    def gain(self, segments: int, size: int, saved: int, length: int) -> float:
        """−|B| Δ_BDL of adding a phrase of that length to `size` others, where it saves that many of `segments`."""
        after = (segments - saved) * log2(size + 1) + phrase_bits(length, self.alphabet, self.max_phrase)
        return segments * log2(size) - after

    def pays(self, segments: int, size: int, saved: int, length: int) -> bool:
        return self.gain(segments, size, saved, length) > STRICTLY

    def least_saving(self, segments: int, size: int, length: int) -> int:
        """The smallest number of segments a phrase of that length must save to pay."""
        saved = max(0, floor(-self.gain(segments, size, 0, length) / log2(size + 1)))
        while not self.pays(segments, size, saved, length):
            saved += 1
        return saved


def rank(count: int, a: Phrase, b: Phrase) -> tuple[int, str, str, Phrase, Phrase]:
    """Frequent pairs first, ties by the pair's text; where skills have spaces in their names, two pairs may read alike."""
    return -count, spell(a), spell(b), a, b
