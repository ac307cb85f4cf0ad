"""pass@k and SC@k against brute force over all choices of k tries; their intervals by hand and by simulation."""

from __future__ import annotations

from itertools import combinations, product
from math import comb
from statistics import mean

import numpy as np
import pytest

from tacit.core.errors import TacitError
from tacit.evaluation.scores import interval_over_tasks, majority_at, over_tasks, pass_at
from tacit.evaluation.statistics import wilson


def test_pass_and_majority_against_brute_force():
    for n, c, k in product(range(1, 9), range(9), range(1, 9)):
        if max(c, k) > n:
            continue
        choices = list(combinations([True] * c + [False] * (n - c), k))
        assert pass_at(k, n, c) == pytest.approx(mean(any(choice) for choice in choices)), (n, c, k)
        assert majority_at(k, n, c) == pytest.approx(mean(sum(choice) > k / 2 for choice in choices)), (n, c, k)


def test_pass_and_majority_limit_cases():
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
def test_impossible_k_is_refused(k, message):
    with pytest.raises(TacitError, match=message):
        pass_at(k, 3, 1)


def test_interval_with_all_tries_is_wilson():
    outcomes = [[True, False, False]] * 6 + [[True, True, False]] * 3 + [[False] * 3]
    assert interval_over_tasks(outcomes, pass_at, 3) == pytest.approx(wilson(9, 10))
    assert interval_over_tasks(outcomes, majority_at, 3) == pytest.approx(wilson(3, 10))
    assert interval_over_tasks([[True], [False], [True]]) == pytest.approx(wilson(2, 3))


def test_interval_over_tasks_by_hand():
    # pass@2 of 4 tries: 1, 5/6, 1/2, 0. p = 7/12, s² = 28/144: the tries are worth 35/144 · 4 / s² = 5 tasks.
    outcomes = [[True] * 4, [True, True, False, False], [True, False, False, False], [False] * 4]
    assert interval_over_tasks(outcomes, pass_at, 2) == pytest.approx(wilson(7 / 12 * 5, 5))


def test_interval_limit_cases():
    alike = [[True, False, False, False]] * 5
    assert interval_over_tasks(alike) == pytest.approx(wilson(5, 20)), "tasks that are alike: every try counts"
    assert interval_over_tasks(alike, pass_at, 2) == pytest.approx(wilson(5, 10)), "two tries a choice: half as many"
    assert interval_over_tasks([[True] * 7] * 5) == wilson(5, 5), "nobody knows how alike tasks are that all succeed"
    assert interval_over_tasks([[False] * 7] * 5, majority_at, 3) == wilson(0, 5)
    assert interval_over_tasks([], pass_at, 3) == (0.0, 1.0)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(("rule", "k"), [(pass_at, 1), (pass_at, 4), (majority_at, 3), (majority_at, 7), (pass_at, 8)])
@pytest.mark.parametrize("shape", [(0.5, 0.5), (1.0, 3.0), (40.0, 40.0)])
def test_interval_coverage(rule, k, shape):
    """Difficulties range from all-or-nothing to all alike. The truth is the mean over the whole task distribution."""
    rng, tasks, tries, panels = np.random.default_rng(k), 60, 8, 500
    easy = rng.beta(*shape, 200_000)
    truth = 1 - (1 - easy) ** k if rule is pass_at else sum(
        comb(k, j) * easy**j * (1 - easy) ** (k - j) for j in range(k // 2 + 1, k + 1)
    )  # fmt: skip
    covered = 0
    for _ in range(panels):
        won_TN = rng.random((tasks, tries)) < rng.beta(*shape, (tasks, 1))
        low, high = interval_over_tasks(won_TN.tolist(), rule, k)
        covered += low <= truth.mean() <= high
    assert covered / panels > 0.92
