"""Intervals and paired tests: plain numbers in, (low, high) or p out. SciPy is imported on use, since it loads slowly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist, median

import numpy as np

RESAMPLES = 10_000  # bootstrap resamples: the interval's ends move by a few hundredths of its width between seeds


def wilson(successes: float, trials: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """The Wilson score interval of a proportion, 95% by default. No trials: (0, 1), nothing is known.

    center = (p + z²/2n) / (1 + z²/n),  half = z / (1 + z²/n) · √(p(1−p)/n + z²/4n²)
    """
    if trials == 0:
        return 0.0, 1.0
    p, zz = successes / trials, z * z / trials
    center = (p + zz / 2) / (1 + zz)
    half = z / (1 + zz) * math.sqrt(p * (1 - p) / trials + zz / (4 * trials))
    # At 0 and 1 the two terms cancel exactly in theory, but only almost in floating point.
    low = 0.0 if successes == 0 else max(0.0, center - half)
    high = 1.0 if successes == trials else min(1.0, center + half)
    return low, high


def t_interval(values_S: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """mean ± t · s / √S with S − 1 degrees of freedom. One value says nothing about its spread: (−∞, ∞).

    Equal values give a width of 0, which understates the uncertainty of a small sample. For a share, prefer `share_interval`,
    which includes the Wilson interval of its episodes.
    """
    _check(values_S, confidence)
    n, mean = len(values_S), float(np.mean(values_S))
    if n == 1:
        return -math.inf, math.inf
    half = _t_quantile(confidence, n - 1) * float(np.std(values_S, ddof=1)) / math.sqrt(n)
    return mean - half, mean + half


def bounded_interval(values_S: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Interval within [0, 1] of the mean of S values in [0, 1], such as graded scores. One value: (0, 1).

    All means μ within t standard errors of the measured mean p. The standard error is that of μ, with variance proportional to
    μ(1−μ): |p − μ| ≤ t √(μ(1−μ) / N), N = p(1−p) · S / s². This is Wilson's interval of N trials with Student's t (S − 1
    degrees of freedom) in place of z. Far from 0 and 1, and with many values, it is `t_interval`.
    """
    _check(values_S, confidence)
    if min(values_S) < 0 or max(values_S) > 1:
        raise ValueError(f"values from {min(values_S):g} to {max(values_S):g} do not lie in [0, 1]")
    n, p = len(values_S), float(np.mean(values_S))
    if n == 1:
        return 0.0, 1.0
    variance = float(np.var(values_S, ddof=1))
    if variance == 0:
        return p, p
    trials = p * (1 - p) * n / variance
    return wilson(p * trials, trials, _t_quantile(confidence, n - 1))


def effective_episodes(shares_T: Sequence[float], variance: float, max_episodes: float) -> float:
    """The effective number of independent episodes among correlated tries at T tasks, from each task's mean over its tries.

    Tries at one task are correlated: seven at an easy task say little more than one. The variance of the mean is s²/T, with s²
    the variance of the task means. N independent episodes, each of this `variance`, would give variance/N. So
    N = variance · T / s², at least T (one try each) and at most `max_episodes` (all tries). Without any variance, N = T.
    """
    tasks = len(shares_T)
    if not tasks or variance <= 0:
        return float(tasks)
    spread = float(np.var(shares_T, ddof=1)) if tasks > 1 else 0.0
    return min(max_episodes, max(tasks, variance * tasks / spread)) if spread else float(max_episodes)


def share_interval(shares_S: Sequence[float], episodes: float, confidence: float = 0.95) -> tuple[float, float]:
    """Interval in [0, 1] of a share measured once per seed on the same tasks: the smallest one that contains two intervals.

    The t interval over seeds covers the variation of training. The Wilson interval over `episodes`, the effective number of
    independent episodes of all seeds, covers the variation of tasks and sampling.

    One seed has the Wilson interval alone.
    """
    p = float(np.mean(shares_S))
    low, high = wilson(p * episodes, episodes, _normal_quantile(confidence))
    if len(shares_S) > 1:
        t_low, t_high = t_interval(shares_S, confidence)
        low, high = min(low, t_low), max(high, t_high)
    return max(0.0, low), min(1.0, high)


def paired_interval(won: float, lost: float, trials: float, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of the difference of two success rates on the same episodes: `won` only by the first, `lost` only by the first.

    Agresti and Min (2005): half an episode is added to each of the four outcomes of a pair, n* = n + 2, and then
    (won − lost)/n* ± z √(won + lost + 1 − (won − lost)²/n*) / n*. No trials: (−1, 1), nothing is known.
    """
    if trials == 0:
        return -1.0, 1.0
    n, gap = trials + 2, won - lost
    half = _normal_quantile(confidence) * math.sqrt(won + lost + 1 - gap * gap / n) / n
    return max(-1.0, gap / n - half), min(1.0, gap / n + half)


def mean_interval(shares_F: Sequence[float], intervals_F: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Interval of the mean of F independent shares, from the interval of each (Zou and Donner's recovery of variances):

    low = mean − √Σ(pᵢ − lᵢ)² / F,  high = mean + √Σ(uᵢ − pᵢ)² / F. No share: (0, 1), nothing is known.
    """
    if not shares_F:
        return 0.0, 1.0
    below = math.hypot(*(p - low for p, (low, _) in zip(shares_F, intervals_F, strict=True)))
    above = math.hypot(*(high - p for p, (_, high) in zip(shares_F, intervals_F, strict=True)))
    count, mean = len(shares_F), sum(shares_F) / len(shares_F)
    return max(0.0, mean - below / count), min(1.0, mean + above / count)


def paired_interval_over_tasks(gaps_TN: Sequence[Sequence[int]], confidence: float = 0.95) -> tuple[float, float]:
    """`paired_interval` where each of T tasks was played in several pairs: +1 won, −1 lost, 0 neither. Pairs at one task are
    correlated, so their effective number is used."""
    gaps = [gap for task_gaps in gaps_TN for gap in task_gaps]
    if not gaps:
        return paired_interval(0, 0, 0, confidence)
    pairs = effective_episodes([sum(task_gaps) / len(task_gaps) for task_gaps in gaps_TN], float(np.var(gaps)), len(gaps))
    won, lost = gaps.count(1) / len(gaps), gaps.count(-1) / len(gaps)
    return paired_interval(won * pairs, lost * pairs, pairs, confidence)


def crossed_bootstrap(
    outcomes_ST: np.ndarray, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean of a table seeds × tasks. A resample draws seeds and one set of tasks for all seeds."""
    outcomes_ST = np.asarray(outcomes_ST, float)
    if outcomes_ST.ndim != 2 or not outcomes_ST.size:
        raise ValueError(f"outcomes must be a non-empty table of seeds × tasks, not of shape {outcomes_ST.shape}")
    _check(outcomes_ST[:, 0].tolist(), confidence)
    rng = np.random.default_rng(seed)
    seeds, tasks = outcomes_ST.shape
    rows_BS, columns_BT = rng.integers(seeds, size=(resamples, seeds)), rng.integers(tasks, size=(resamples, tasks))
    means_B = np.array([outcomes_ST[np.ix_(s, t)].mean() for s, t in zip(rows_BS, columns_BT, strict=True)])
    low, high = np.percentile(means_B, [50 * (1 - confidence), 50 * (1 + confidence)])
    return float(low), float(high)


def _normal_quantile(confidence: float) -> float:
    """z such that a standard normal variable lies between −z and z with this probability."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _t_quantile(confidence: float, freedom: int) -> float:
    """The same for Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + confidence) / 2))


def _check(values_S: Sequence[float], confidence: float) -> None:
    if not len(values_S):
        raise ValueError("an interval needs at least one value")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} must be between 0 and 1")


# Paired tests without distributional assumptions, and a correction for multiple comparisons.


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> tuple[int, int, float]:
    """Exact McNemar test of two agents on the same episodes: (only first succeeded, only second succeeded, two-sided p).

    Episodes that both won or both lost carry no information. Under the null hypothesis, each of the n others is a fair coin:
    p = min(1, 2 · P(Binomial(n, ½) ≤ min(b, c))). No such episode: p = 1.
    """
    from scipy.special import bdtr

    if len(first) != len(second):
        raise ValueError(f"{len(first)} episodes cannot be paired with {len(second)}")
    b = sum(bool(x) and not y for x, y in zip(first, second, strict=True))
    c = sum(bool(y) and not x for x, y in zip(first, second, strict=True))
    return b, c, min(1.0, 2 * float(bdtr(min(b, c), b + c, 0.5)))


def sign_flip(differences_U: Sequence[float], resamples: int = 100_000, seed: int = 0) -> float:
    """Two-sided p of a paired sign-flip test: the share of sign patterns whose mean is at least as far from 0 as the observed.

    If the two agents are equal, each unit's difference is as likely to have the other sign. A unit is what was drawn
    independently: a seed or a task. If there are at most `resamples` patterns (up to 16 units), all are tried; otherwise
    that many random ones, and the observed one counts too, so p is never 0. With few units nothing is significant: the
    smallest exact p of n units is 2 / 2ⁿ, which is 0.0625 for five seeds.
    """
    from scipy.stats import permutation_test

    values = np.asarray(differences_U, float)
    if values.ndim != 1 or not len(values):
        raise ValueError("a paired test needs at least one difference")
    if len(values) == 1:
        return 1.0
    result = permutation_test(
        (values,),
        lambda flipped, axis: np.abs(flipped.sum(axis)).round(12),  # summation order changes the last digits
        permutation_type="samples",
        alternative="greater",
        n_resamples=resamples,
        batch=10_000,
        vectorized=True,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the k-th smallest of m p-values is multiplied by m − k + 1, then made monotone and ≤ 1.

    Rejecting where the result is at most α bounds the family-wise error rate by α, under any dependence.
    """
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    corrected, worst = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(ps) - rank) * ps[i]))
        corrected[i] = worst
    return corrected


# Learning curves as [(step, value)].

Curve = Sequence[tuple[int, float]]


def steps_to(curve: Curve, threshold: float) -> int | None:
    """The first *measured* step at or above the threshold; None if there is none.

    Nothing is interpolated, so the answer is late by up to one evaluation interval.
    """
    return next((step for step, value in curve if value >= threshold), None)


def median_steps_to(steps: Sequence[int | None]) -> float | None:
    """The median over seeds. A seed that never reached the threshold counts as later than all others; None if the median seed
    never did. (A mean over the seeds that did would favor methods whose slow seeds fail.)"""
    if not steps:
        return None
    middle = float(median(math.inf if s is None else s for s in steps))
    return None if middle == math.inf else middle


def area(curve: Curve) -> float | None:
    """Mean height of the curve between its first and last step (trapezoids). None for fewer than two steps."""
    if len(curve) < 2 or curve[-1][0] == curve[0][0]:
        return None
    pairs = itertools.pairwise(curve)
    return sum((t1 - t0) * (v0 + v1) / 2 for (t0, v0), (t1, v1) in pairs) / (curve[-1][0] - curve[0][0])
