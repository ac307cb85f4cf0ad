"""Theorem 3 and Proposition 4: range of the loss, normalization of the prior, hand-computed values, and simulation."""

from __future__ import annotations

import random
from itertools import chain, combinations, product
from math import exp, log, log1p, log2, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.companions.dictionary import (
    Dictionary,
    complexity,
    extract_dictionary,
    normalized_loss,
    proposition_4,
    theorem_3,
)

ABC = ("A", "B", "C")


def log_normaliser(alphabet: int, max_phrase: int) -> float:
    """ln Z ≤ 0 of the prior P(C) = 2^−L_dict(C) / Z over all dictionaries with every single skill:

    Z = (1 / LK)^K ∏_{l = 2 … L} (1 + 1 / (L K^l))^(K^l)
    """
    longer = (alphabet**length * log1p(1 / (max_phrase * alphabet**length)) for length in range(2, max_phrase + 1))
    return -alphabet * log(max_phrase * alphabet) + sum(longer)


def mean_loss(corpus, code: Dictionary, horizon: int) -> float:
    """The empirical side of Eq. 7: mean ℓ̃_m over the m sequences of the corpus."""
    return sum(normalized_loss(code.seg(s), code, len(corpus), horizon) for s in corpus) / len(corpus)


@given(
    st.lists(st.lists(st.sampled_from(ABC), min_size=1, max_size=12).map(tuple), min_size=1, max_size=8),
    st.sets(st.lists(st.sampled_from(ABC), min_size=2, max_size=4).map(tuple), max_size=5),
    st.integers(12, 60),
)
def test_normalized_loss_is_in_the_unit_interval(corpus, merged, horizon):
    code = Dictionary(ABC, tuple(sorted(merged)))
    losses = [normalized_loss(code.seg(s), code, len(corpus), horizon) for s in corpus]
    assert all(0 < loss <= 1 for loss in losses)
    assert mean_loss(corpus, code, horizon) == pytest.approx(float(np.mean(losses)))
    segments = sum(map(code.seg, corpus)) / len(corpus)
    assert mean_loss(corpus, code, horizon) == pytest.approx(normalized_loss(segments, code, len(corpus), horizon)), "affine"


def test_normalized_loss_at_its_limits():
    code = Dictionary(ABC)
    assert normalized_loss(20, code, 5, 20) == 1.0, "T segments of the dearest kind"
    shared = code.bits / 5
    assert normalized_loss(1, code, 5, 20) == pytest.approx((shared + log2(3)) / (shared + 20 * log2(3)))
    assert normalized_loss(1, Dictionary(("A",), (), 1), 1, 1) == 0.0, "one skill, phrases of one: nothing to say"


@pytest.mark.parametrize(("alphabet", "longest"), [(1, 1), (1, 2), (1, 4), (2, 2), (2, 3), (3, 2)])
def test_prior_normalizer_matches_enumeration(alphabet, longest):
    """Z is the sum of 2^−L_dict(C) over all dictionaries of the alphabet."""
    skills = tuple("ABC"[:alphabet])
    longer = [p for length in range(2, longest + 1) for p in product(skills, repeat=length)]
    sets = chain.from_iterable(combinations(longer, size) for size in range(len(longer) + 1))
    Z = sum(2.0 ** -Dictionary(skills, chosen, longest).bits for chosen in sets)
    assert Z <= 1 + 1e-12
    assert exp(log_normaliser(alphabet, longest)) == pytest.approx(Z)


@given(st.integers(1, 40), st.integers(1, 6))
def test_prior_normalizer_is_at_most_one_for_any_size(alphabet, longest):
    assert log_normaliser(alphabet, longest) <= -alphabet * log(longest * alphabet) + (longest - 1) / longest + 1e-9 <= 1e-9


def test_theorem_3_matches_hand_computed_value():
    code, m, T, delta = Dictionary(ABC, (("A", "B"),)), 50, 10, 0.1
    bits = 3 * (log2(3) + 2) + 2 * log2(3) + 2
    loss = (bits / m + 4 * 2) / (bits / m + T * 2)
    assert theorem_3(4, code, m, T, delta) == pytest.approx(loss + sqrt((bits * log(2) + log(m / delta)) / (2 * m)))


def test_bound_tightens_with_more_successes_and_smaller_dictionaries():
    small, large = Dictionary(ABC), Dictionary(ABC, (("A", "B"), ("B", "C")))
    assert complexity(small.bits, 100, 0.05) < complexity(large.bits, 100, 0.05)
    slack = [complexity(small.bits, m, 0.05) for m in (1, 10, 100, 1000, 100_000)]
    assert slack == sorted(slack, reverse=True) and slack[-1] < 0.02
    assert complexity(small.bits, 100, 0.01) > complexity(small.bits, 100, 0.1)


def test_proposition_4_matches_hand_computed_value():
    code, corpus = Dictionary(ABC, (("A", "B"),)), [("A", "B"), ("A", "B", "C")]
    B, U = code.bits, code.bits / 2 + 2 * log2(4)
    expected = code.description_length(corpus) + U * sqrt((B * log(2) + log(2 / 0.05)) / 4)
    assert proposition_4(corpus, code) == pytest.approx(expected)
    assert proposition_4(corpus, code, most_segments=5) > expected, "a looser assumption, a looser bound"
    assert proposition_4(corpus, code, dictionary_bits=2 * B) > expected


def a_distribution(seed: int) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """A distribution over at most forty sequences with known phrases, so expectations are exact sums."""
    rng = random.Random(seed)
    support = list({tuple("".join(rng.choices(["AB", "ABC", "C", "A"], k=rng.randint(1, 6)))) for _ in range(40)})
    weights = np.array([rng.random() ** 3 for _ in support])
    return support, weights / weights.sum()


@pytest.mark.slow
def test_bounds_hold_in_simulation():
    """Eq. 7 for the dictionary extracted from the sample, Eq. 8 for a fixed one; δ = 0.1.

    The sample loss alone is below the expected loss in more than a quarter of the trials, so the bound is needed.
    """
    delta, horizon, trials, failed, failed_fixed, hopeful = 0.1, 18, 200, 0, 0, 0
    support, probability = a_distribution(0)
    fixed = Dictionary(ABC, (("A", "B"),))
    most = max(map(fixed.seg, support))
    for trial in range(trials):
        m = (5, 30, 200)[trial % 3]
        drawn = np.random.default_rng(trial).choice(len(support), size=m, p=probability)
        sample = [support[i] for i in drawn]
        found = extract_dictionary(sample, ABC).dictionary
        losses = [normalized_loss(found.seg(s), found, m, horizon) for s in support]
        expected, seen = float(probability @ losses), mean_loss(sample, found, horizon)
        segments = sum(map(found.seg, sample)) / m
        failed += expected > theorem_3(segments, found, m, horizon, delta)
        hopeful += expected > seen
        bits = float(probability @ [fixed.description_length([s]) - fixed.bits * (1 - 1 / m) for s in support])
        failed_fixed += bits > proposition_4(sample, fixed, delta, most_segments=most)
    assert failed <= delta * trials and failed_fixed <= delta * trials
    assert hopeful > trials / 4
