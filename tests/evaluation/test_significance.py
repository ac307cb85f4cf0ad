"""Paired tests, by hand and against each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tacit.evaluation.statistics import holm, mcnemar, sign_flip


def outcomes(won: int, lost: int, both: int = 3, neither: int = 2) -> tuple[list[bool], list[bool]]:
    first = [True] * won + [False] * lost + [True] * both + [False] * neither
    second = [False] * won + [True] * lost + [True] * both + [False] * neither
    return first, second


@pytest.mark.parametrize(
    ("won", "lost", "p"),
    [
        (0, 0, 1.0),
        (3, 3, 1.0),
        (5, 0, 2 / 32),
        (0, 6, 2 / 64),
        (10, 2, 2 * (1 + 12 + 66) / 4096),
        (59, 121, 4.434e-06),
    ],
)
def test_mcnemar_against_known_values(won, lost, p):
    assert mcnemar(*outcomes(won, lost)) == (won, lost, pytest.approx(p, rel=1e-3))


def test_mcnemar_handles_many_episodes_and_refuses_unpaired_ones():
    assert mcnemar(*outcomes(2600, 2400))[2] == pytest.approx(0.00487, abs=3e-4)
    with pytest.raises(ValueError, match="cannot be paired"):
        mcnemar([True], [True, False])


def test_sign_flip_tries_every_pattern():
    differences = [0.3, -0.1, 0.2, 0.0, 0.25]
    observed = abs(sum(differences))
    patterns = list(itertools.product((1, -1), repeat=5))
    hits = sum(abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= observed - 1e-12 for signs in patterns)
    assert sign_flip(differences) == hits / 32
    assert sign_flip([0.1] * 5) == 2 / 32  # the smallest p-value for five seeds
    assert sign_flip([0.0, 0.0]) == 1.0 and sign_flip([0.7]) == 1.0
    # 0.3 − 0.1 − 0.2 is 0 exactly and 10⁻¹⁷ in floating point; every pattern must count as at least as extreme.
    assert sign_flip([0.3, -0.1, -0.2]) == 1.0
    with pytest.raises(ValueError, match="at least one"):
        sign_flip([])


def test_sign_flip_of_wins_and_losses_equals_mcnemar():
    for won, lost in ((4, 1), (7, 2), (3, 3), (9, 0)):
        assert sign_flip([1.0] * won + [-1.0] * lost + [0.0] * 2) == pytest.approx(mcnemar(*outcomes(won, lost))[2])


def test_random_patterns_approximate_all_patterns():
    differences = np.random.default_rng(3).normal(0.3, 1.0, 16).tolist()
    exact = sign_flip(differences)
    drawn = sign_flip(differences, resamples=40_000)
    assert exact * 2**16 == round(exact * 2**16) and drawn != exact and drawn == pytest.approx(exact, abs=0.01)
    assert drawn == sign_flip(differences, resamples=40_000) and sign_flip([1.0] * 60, resamples=1000) == 1 / 1001


@pytest.mark.slow
def test_sign_flip_false_positive_rate():
    rng = np.random.default_rng(0)
    wrong = np.mean([sign_flip(rng.normal(0, 1, 8).tolist()) <= 0.05 for _ in range(600)])
    assert wrong < 0.075


def test_holm_by_hand():
    # sorted: 0.005·4, 0.01·3, 0.03·2, 0.04·1; the last is raised to 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0] and holm([0.2]) == [0.2] and holm([]) == []
