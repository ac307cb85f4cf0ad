"""Generalization bounds of a dictionary (ReuseRL §3.5, §A.2–A.3). Logarithms of sizes are in bits.

    U_m(C)     = L_dict(C)/m + T log₂|C|
    ℓ̃_m(s, C)  = (L_dict(C)/m + seg(s, C) log₂|C|) / U_m(C)                               in [0, 1] for 1 ≤ seg ≤ T
    E ℓ̃(s, Ĉ)  ≤ mean ℓ̃(sᵢ, Ĉ) + √((L_dict(Ĉ) ln 2 + ln(m/δ)) / 2m)                      Theorem 3, Eq. 7
    E ψ(s)     ≤ mean ψ(sᵢ) + (B*/m + K* log₂|C*|) √((B* ln 2 + ln(m/δ)) / 2m)            Proposition 4, Eq. 8

They hold with probability 1 − δ over m independent successes of one policy. Eq. 7 also holds for a dictionary extracted from
these successes, since P(C) = 2^−L_dict(C) / Z is a prior with Z ≤ 1. A success buffer mixes policies of several iterations;
there the bound only measures how well the dictionary fits.
"""

from __future__ import annotations

from math import log, log2, sqrt

from tacit.companions.dictionary.extraction import Dictionary, Sequences
from tacit.core.errors import TacitError


def normalized_loss(segments: float, dictionary: Dictionary, m: int, horizon: int) -> float:
    """ℓ̃_m of a success with that many segments. Affine, so the mean segments give the mean loss."""
    if m < 1:
        raise TacitError(f"m = {m}: the loss of Theorem 3 shares the dictionary's cost among m ≥ 1 successes.")
    if horizon < 1:
        raise TacitError(f"T = {horizon}: the loss of Theorem 3 is measured against T ≥ 1 segments.")
    if not 1 <= segments <= horizon:
        raise TacitError(
            f"a success of {segments:g} segments is outside of 1 … T = {horizon}: the loss of Theorem 3 would leave [0, 1]. "
            f"T must be at least the length of the longest success."
        )
    shared, per_segment = dictionary.bits / m, log2(len(dictionary))
    longest = shared + horizon * per_segment
    return (shared + segments * per_segment) / longest if longest else 0.0  # one skill and L = 1: zero bits


def complexity(bits: float, m: int, delta: float) -> float:
    """√((bits ln 2 + ln(m/δ)) / 2m): the penalty for choosing the dictionary after seeing the sample."""
    if not 0 < delta < 1:
        raise TacitError(f"delta = {delta}: the bound fails with probability δ, which lies between 0 and 1.")
    if m < 1:
        raise TacitError(f"m = {m}: a bound needs at least one success.")
    return sqrt((bits * log(2) + log(m / delta)) / (2 * m))


def theorem_3(segments: float, dictionary: Dictionary, m: int, horizon: int, delta: float = 0.05) -> float:
    """Upper bound on the expected normalised description length of a fresh success, from the mean segments of m successes."""
    return normalized_loss(segments, dictionary, m, horizon) + complexity(dictionary.bits, m, delta)


def proposition_4(
    corpus: Sequences,
    dictionary: Dictionary,
    delta: float = 0.05,
    dictionary_bits: float | None = None,
    most_segments: int | None = None,
) -> float:
    """Upper bound in bits on the expected description length of a fresh success under a dictionary fixed beforehand.

    `dictionary_bits` is B*, an upper bound on the cost of the dictionary; `most_segments` is K*, one on the segments of any
    success (Assumption 2). Defaults: the dictionary's cost and the most in the corpus. The latter is a guess, since a rarer
    success may need more.
    """
    if not corpus:
        raise TacitError("the bound of Proposition 4 needs at least one success.")
    segments, m = [dictionary.seg(s) for s in corpus], len(corpus)
    budget = dictionary.bits if dictionary_bits is None else dictionary_bits
    most = max(segments) if most_segments is None else most_segments
    if budget < dictionary.bits:
        raise TacitError(f"B* = {budget:g} bits is below the dictionary's own cost of {dictionary.bits:g}: Assumption 2 fails.")
    if most < max(segments):
        raise TacitError(f"K* = {most}, but a success of the corpus takes {max(segments)} segments: Assumption 2 fails.")
    largest = budget / m + most * log2(len(dictionary))
    return dictionary.description_length(corpus) + largest * complexity(budget, m, delta)
