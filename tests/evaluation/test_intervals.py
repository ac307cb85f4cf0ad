"""Confidence intervals against published values, closed forms and exhaustive resampling."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tacit.evaluation.statistics import (
    bounded_interval,
    crossed_bootstrap,
    effective_episodes,
    mean_interval,
    paired_interval,
    paired_interval_over_tasks,
    share_interval,
    t_interval,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Newcombe (1998), table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_matches_published_examples(successes, trials, low, high):
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)
    assert wilson(trials - successes, trials) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_wilson_without_trials_and_at_the_ends():
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 5)[0] == 0.0 and wilson(5, 5)[1] == 1.0


@pytest.mark.parametrize(
    ("freedom", "ninety_five", "ninety_nine"),
    # Student's t, two-sided 95% and 99%, from tables.
    [(1, 12.706, 63.657), (2, 4.303, 9.925), (3, 3.182, 5.841), (4, 2.776, 4.604), (9, 2.262, 3.250), (30, 2.042, 2.750)],
)
def test_t_intervals_match_the_tables(freedom, ninety_five, ninety_nine):
    values = np.random.default_rng(freedom).normal(size=freedom + 1)
    error = values.std(ddof=1) / math.sqrt(len(values))
    for confidence, t in ((0.95, ninety_five), (0.99, ninety_nine)):
        low, high = t_interval(values.tolist(), confidence)
        assert (values.mean() - low, high - values.mean()) == pytest.approx((t * error, t * error), abs=5e-4 * error)


def test_t_interval_of_three_seeds_by_hand():
    # mean 0.5, s = 0.1, t₂ = 4.3027: 4.3027 · 0.1 / √3 = 0.24841
    assert t_interval([0.4, 0.5, 0.6]) == pytest.approx((0.5 - 0.24841, 0.5 + 0.24841), abs=1e-5)
    assert t_interval([0.4]) == (-math.inf, math.inf)
    with pytest.raises(ValueError, match="at least one"):
        t_interval([])


def test_bounded_interval_by_hand():
    # p = 0.5, s² = 0.08, so N = 0.25 · 2 / 0.08 = 6.25; t₁ = 12.706, t²/N = 25.83:
    # half = 12.706 / 26.83 · √(0.25 / 6.25 + 25.83 / 25) = 0.4906
    assert bounded_interval([0.3, 0.7]) == pytest.approx((0.0094, 0.9906), abs=1e-4)
    assert bounded_interval([0.25]) == (0.0, 1.0) and bounded_interval([0.4, 0.4]) == (0.4, 0.4)
    assert bounded_interval([0.0, 1.0])[0] > 0.0, "both ends were seen: the mean is neither"
    with pytest.raises(ValueError, match="do not lie in"):
        bounded_interval([0.5, 1.2])


def test_bounded_interval_equals_t_interval_far_from_the_bounds():
    values = np.random.default_rng(0).normal(0.5, 0.05, 200)
    assert bounded_interval(values.tolist()) == pytest.approx(t_interval(values.tolist()), abs=1e-4)


@pytest.mark.parametrize(
    ("shape", "seeds", "least"), [((2, 3), 5, 0.93), ((8, 2), 3, 0.93), ((1, 8), 5, 0.91), ((20, 20), 2, 0.93)]
)
def test_bounded_interval_covers_the_truth_and_stays_in_bounds(shape, seeds, least):
    rng, covered = np.random.default_rng(0), 0
    for values in rng.beta(*shape, (1000, seeds)):
        low, high = bounded_interval(values.tolist())
        assert 0.0 <= low < values.mean() < high <= 1.0
        covered += low <= shape[0] / sum(shape) <= high
    assert covered / 1000 > least


def test_share_interval_covers_seed_and_episode_uncertainty():
    # Equal seeds: their spread is 0, but the episodes are still uncertain.
    assert share_interval([0.0, 0.0, 0.0], 12) == pytest.approx(wilson(0, 12))
    # Many episodes, but three seeds that are far apart.
    assert share_interval([0.1, 0.5, 0.9], 3000) == (0.0, 1.0) and t_interval([0.1, 0.5, 0.9])[0] < 0
    assert share_interval([0.5], 10) == pytest.approx(wilson(5, 10))


def test_effective_episodes_depend_on_task_variance():
    assert effective_episodes([1.0, 0.0, 1.0, 0.0], 0.25, 20) == 4, "five tries at each came out alike: four tasks were seen"
    assert effective_episodes([0.5, 0.5], 0.25, 20) == 20, "no task differs from another: all tries count"
    # s² = 0.0625 · 4/3 = 1/12, so N = 0.25 · 4 · 12 = 12 of 20
    assert effective_episodes([0.25, 0.75, 0.25, 0.75], 0.25, 20) == pytest.approx(12)
    assert effective_episodes([1.0, 1.0], 0.0, 20) == 2 and effective_episodes([], 0.25, 0) == 0


def _tries(rng: np.random.Generator, tasks: int, seeds: int) -> list[list[bool]]:
    """Tasks that are easy or hard for every seed, with mean success 2/3."""
    return [(rng.random(seeds) < chance).tolist() for chance in rng.beta(1.0, 0.5, tasks)]


def test_share_interval_coverage_when_seeds_share_tasks():
    rng, covered, naive = np.random.default_rng(0), 0, 0
    for _ in range(600):
        tries = _tries(rng, 60, 5)
        shares = [sum(own) / 5 for own in tries]
        p = sum(shares) / 60
        low, high = share_interval([p], effective_episodes(shares, p * (1 - p), 300))
        covered += low <= 2 / 3 <= high
        low, high = wilson(p * 300, 300)
        naive += low <= 2 / 3 <= high
    assert 0.92 < covered / 600 < 0.98 and naive / 600 < 0.85


def test_paired_interval_when_seeds_share_tasks():
    assert paired_interval_over_tasks([[1], [0], [-1], [1]]) == paired_interval(2, 1, 4), "one pair each is the plain interval"
    assert paired_interval_over_tasks([[1, 1], [0, 0], [-1, -1], [1, 1]]) == paired_interval(2, 1, 4)
    assert paired_interval_over_tasks([]) == (-1.0, 1.0)
    rng, covered = np.random.default_rng(1), 0
    for _ in range(600):  # one method is better on some tasks and worse on others, 0 on average
        better = rng.choice([-0.6, 0.0, 0.6], 60)
        gaps = [(np.sign(d) * (rng.random(5) < abs(d))).astype(int).tolist() for d in better]
        low, high = paired_interval_over_tasks(gaps)
        covered += low <= 0.0 <= high
    assert 0.92 < covered / 600 < 0.99


def test_paired_interval_by_hand():
    # won 12, lost 2, n = 50: (10 ± 1.96 √(15 − 100/52)) / 52 = 0.1923 ± 1.96 · 3.6162 / 52
    assert paired_interval(12, 2, 50) == pytest.approx((0.19231 - 0.13630, 0.19231 + 0.13630), abs=1e-4)
    low, high = paired_interval(0, 0, 8)
    assert low == -high and high > 0.15
    assert paired_interval(0, 0, 0) == (-1.0, 1.0)


def test_paired_interval_coverage():
    rng = np.random.default_rng(0)
    won, lost, n = 0.25, 0.1, 40
    draws = rng.multinomial(n, [won, lost, 1 - won - lost], size=3000)
    inside = [low <= won - lost <= high for low, high in (paired_interval(int(w), int(x), n) for w, x, _ in draws)]
    assert 0.93 < np.mean(inside) < 0.98


@pytest.mark.slow
def test_crossed_bootstrap_equals_plain_one_if_one_level_varies():
    values = np.array([0.1, 0.4, 0.9, 0.5])
    exact = np.percentile([np.mean(resample) for resample in itertools.product(values, repeat=4)], [2.5, 97.5])
    assert crossed_bootstrap(values[:, None]) == pytest.approx(tuple(exact), abs=0.013), "one task"
    assert crossed_bootstrap(values[None]) == pytest.approx(tuple(exact), abs=0.013), "one seed"
    assert crossed_bootstrap(np.repeat(values[:, None], 5, axis=1)) == pytest.approx(tuple(exact), abs=0.02), "tasks alike"
    assert crossed_bootstrap(values[None], seed=1) == crossed_bootstrap(values[None], seed=1)


def test_crossed_bootstrap_equals_all_resamples():
    table = np.array([[0.0, 1.0], [1.0, 1.0]])
    pairs = list(itertools.product(range(2), repeat=2))
    means = [table[np.ix_(rows, columns)].mean() for rows in pairs for columns in pairs]
    assert crossed_bootstrap(table, 0.8) == pytest.approx(tuple(np.percentile(means, [10, 90])), abs=1e-9)
    with pytest.raises(ValueError, match="seeds × tasks"):
        crossed_bootstrap(np.zeros((0, 3)))


def test_mean_interval_by_hand():
    assert mean_interval([0.3], [wilson(3, 10)]) == pytest.approx(wilson(3, 10)), "one share is its own mean"
    # 0.2 − √(0.1² + 0.0²) / 2 and 0.2 + √(0.3² + 0.4²) / 2
    assert mean_interval([0.4, 0.0], [(0.3, 0.7), (0.0, 0.4)]) == pytest.approx((0.15, 0.45))
    assert mean_interval([], []) == (0.0, 1.0)


def test_mean_interval_coverage():
    rng, truth, sizes = np.random.default_rng(0), np.array([0.02, 0.3, 0.75, 0.9]), np.array([12, 40, 8, 20])
    covered = 0
    for _ in range(1000):
        won = rng.binomial(sizes, truth)
        low, high = mean_interval((won / sizes).tolist(), [wilson(int(w), int(n)) for w, n in zip(won, sizes, strict=True)])
        covered += low <= truth.mean() <= high
    assert 0.93 < covered / 1000 < 0.99
