"""pass@k and SC@k against brute force over every choice of k tries."""

from __future__ import annotations

from itertools import combinations
from statistics import mean

import pytest

from tacit.core.errors import TacitError
from tacit.evaluation.repeats import majority_at, over_tasks, pass_at

CASES = [(n, c, k) for n in range(1, 9) for c in range(n + 1) for k in range(1, n + 1)]


@pytest.mark.parametrize(("n", "c", "k"), CASES)
def test_against_every_choice(n, c, k):
    tries = [True] * c + [False] * (n - c)
    choices = list(combinations(tries, k))
    assert pass_at(k, n, c) == pytest.approx(mean(any(choice) for choice in choices))
    assert majority_at(k, n, c) == pytest.approx(mean(sum(choice) > k / 2 for choice in choices))


def test_limits():
    assert [pass_at(1, 7, c) for c in range(8)] == pytest.approx([c / 7 for c in range(8)]), "pass@1 is the success rate"
    assert [majority_at(7, 7, c) for c in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1], "n = k is the plain vote"
    assert [majority_at(4, 4, c) for c in range(5)] == [0, 0, 0, 1, 1], "half is no majority"
    assert pass_at(7, 7, 1) == 1.0


def test_large_numbers_stay_exact():
    assert pass_at(100, 1000, 1) == pytest.approx(0.1) and majority_at(101, 1001, 501) > 0.5


def test_mean_over_tasks():
    outcomes = [[True, False, False], [True, True, False], [False, False, False]]
    assert over_tasks(pass_at, 2, outcomes) == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert over_tasks(majority_at, 3, outcomes) == pytest.approx(1 / 3)
    assert over_tasks(pass_at, 1, []) == 0.0


@pytest.mark.parametrize(
    ("k", "message"), [(4, "need 4 episodes per task, and there are 3; add --repeats 4"), (0, "at least 1")]
)
def test_k_that_cannot_be(k, message):
    with pytest.raises(TacitError, match=message):
        pass_at(k, 3, 1)
