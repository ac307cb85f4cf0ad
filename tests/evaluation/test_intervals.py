"""Intervals against published values, closed forms, and every resample there is."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tacit.evaluation.intervals import (
    bootstrap,
    hierarchical_bootstrap,
    incomplete_beta,
    mean_interval,
    paired_interval,
    share_interval,
    t_below,
    t_interval,
    t_quantile,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Newcombe (1998), table I, method 3: the examples every implementation is checked with.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_examples(successes, trials, low, high):
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)
    assert wilson(trials - successes, trials) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_wilson_knows_nothing_without_trials_and_is_whole_at_the_ends():
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 5)[0] == 0.0 and wilson(5, 5)[1] == 1.0


@pytest.mark.parametrize(
    ("freedom", "ninety_five", "ninety_nine"),
    # Any table of Student's t: two-sided 95% and 99%.
    [(1, 12.706, 63.657), (2, 4.303, 9.925), (3, 3.182, 5.841), (4, 2.776, 4.604), (9, 2.262, 3.250), (30, 2.042, 2.750)],
)
def test_t_quantiles_are_those_of_the_tables(freedom, ninety_five, ninety_nine):
    assert t_quantile(0.975, freedom) == pytest.approx(ninety_five, abs=5e-4)
    assert t_quantile(0.995, freedom) == pytest.approx(ninety_nine, abs=5e-4)
    assert t_quantile(0.025, freedom) == -t_quantile(0.975, freedom)


def test_t_agrees_with_its_closed_forms_and_tends_to_the_normal():
    for t in (0.0, 0.3, 1.0, 4.0, 50.0):
        assert t_below(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-13)
        assert t_below(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-13)
        assert t_below(-t, 2) == pytest.approx(1 - t_below(t, 2))
    assert t_quantile(0.975, 10_000_000) == pytest.approx(1.959964, abs=1e-5)


def test_t_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 3, 4, 7, 19, 200):
        for p in (0.51, 0.6, 0.9, 0.975, 0.9999):
            assert t_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-9)


def test_incomplete_beta_has_its_closed_forms():
    for x in (0.0, 0.01, 0.3, 0.5, 0.9, 1.0):
        assert incomplete_beta(x, 1, 3) == pytest.approx(1 - (1 - x) ** 3, abs=1e-14)
        assert incomplete_beta(x, 2, 1) == pytest.approx(x * x, abs=1e-14)
        assert incomplete_beta(x, 0.5, 0.5) == pytest.approx(2 / math.pi * math.asin(math.sqrt(x)), abs=1e-13)


def test_t_interval_of_three_seeds_worked_out_by_hand():
    # mean 0.5, s = 0.1, t₂ = 4.3027: 4.3027 · 0.1 / √3 = 0.24841
    assert t_interval([0.4, 0.5, 0.6]) == pytest.approx((0.5 - 0.24841, 0.5 + 0.24841), abs=1e-5)
    assert t_interval([0.4]) == (-math.inf, math.inf)
    with pytest.raises(ValueError, match="at least one"):
        t_interval([])


def test_share_interval_is_never_narrower_than_either_source_of_doubt():
    # Seeds that agree to the episode: the spread of seeds is 0, that of episodes is not.
    assert share_interval([0, 0, 0], [4, 4, 4]) == pytest.approx(wilson(0, 12))
    # Seeds far apart: the episodes are many, the seeds are three.
    low, high = share_interval([100, 500, 900], [1000] * 3)
    assert (low, high) == (0.0, 1.0) and t_interval([0.1, 0.5, 0.9])[0] < 0
    assert share_interval([5], [10]) == pytest.approx(wilson(5, 10))


def test_paired_interval_worked_out_by_hand():
    # won 12, lost 2, n = 50: (10 ± 1.96 √(15 − 100/52)) / 52 = 0.1923 ± 1.96 · 3.6162 / 52
    assert paired_interval(12, 2, 50) == pytest.approx((0.19231 - 0.13630, 0.19231 + 0.13630), abs=1e-4)
    low, high = paired_interval(0, 0, 8)
    assert low == -high and high > 0.15
    assert paired_interval(0, 0, 0) == (-1.0, 1.0)


def test_paired_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    won, lost, n = 0.25, 0.1, 40
    draws = rng.multinomial(n, [won, lost, 1 - won - lost], size=3000)
    inside = [low <= won - lost <= high for low, high in (paired_interval(int(w), int(x), n) for w, x, _ in draws)]
    assert 0.93 < np.mean(inside) < 0.98


def test_bootstrap_is_that_of_all_resamples():
    values = [0.1, 0.4, 0.9, 0.5]
    means = [np.mean(resample) for resample in itertools.product(values, repeat=4)]
    exact = np.percentile(means, [2.5, 97.5])
    assert bootstrap(values, resamples=40_000) == pytest.approx(tuple(exact), abs=0.013)
    assert bootstrap(values, seed=1) == bootstrap(values, seed=1)
    assert bootstrap([0.3]) == (0.3, 0.3)


def test_hierarchical_bootstrap_is_the_plain_one_where_only_one_level_varies():
    seeds_only = np.repeat(np.array([[0.0], [0.5], [1.0]]), 5, axis=1)
    assert hierarchical_bootstrap(seeds_only) == pytest.approx(bootstrap([0.0, 0.5, 1.0]), abs=0.02)
    tasks_only = np.tile([0.0, 0.0, 1.0, 1.0], (1, 1))
    assert hierarchical_bootstrap(tasks_only) == pytest.approx(bootstrap([0.0, 0.0, 1.0, 1.0]), abs=1e-9)


def test_hierarchical_bootstrap_is_that_of_all_resamples():
    table = np.array([[0.0, 1.0], [1.0, 1.0]])
    means = []
    for rows in itertools.product(range(2), repeat=2):
        for columns in itertools.product(range(2), repeat=4):
            means.append(np.mean([table[rows[i // 2], c] for i, c in enumerate(columns)]))
    assert hierarchical_bootstrap(table, 0.8) == pytest.approx(tuple(np.percentile(means, [10, 90])), abs=1e-9)
    with pytest.raises(ValueError, match="seeds × tasks"):
        hierarchical_bootstrap(np.zeros((0, 3)))


def test_the_interval_of_a_mean_of_shares():
    assert mean_interval([0.3], [wilson(3, 10)]) == pytest.approx(wilson(3, 10)), "one share is its own mean"
    # 0.2 − √(0.1² + 0.0²) / 2 and 0.2 + √(0.3² + 0.4²) / 2
    assert mean_interval([0.4, 0.0], [(0.3, 0.7), (0.0, 0.4)]) == pytest.approx((0.15, 0.45))
    assert mean_interval([], []) == (0.0, 1.0)


def test_the_interval_of_a_mean_of_shares_holds_the_truth():
    rng, truth, sizes = np.random.default_rng(0), np.array([0.02, 0.3, 0.75, 0.9]), np.array([12, 40, 8, 20])
    held = 0
    for _ in range(1000):
        won = rng.binomial(sizes, truth)
        low, high = mean_interval((won / sizes).tolist(), [wilson(int(w), int(n)) for w, n in zip(won, sizes, strict=True)])
        held += low <= truth.mean() <= high
    assert 0.93 < held / 1000 < 0.99
