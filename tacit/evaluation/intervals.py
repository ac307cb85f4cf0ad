"""How sure a proportion, or a mean over a few seeds, is. Plain numbers in, (low, high) out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

RESAMPLES = 10_000
"""of a bootstrap: its ends then move by a few hundredths of the interval's width from seed to seed"""


def wilson(successes: float, trials: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """The Wilson score interval of a proportion, 95% by default. No trials: (0, 1), nothing is known.

    centre = (p + z²/2n) / (1 + z²/n),  half = z / (1 + z²/n) · √(p(1−p)/n + z²/4n²)
    """
    if trials == 0:
        return 0.0, 1.0
    p, zz = successes / trials, z * z / trials
    centre = (p + zz / 2) / (1 + zz)
    half = z / (1 + zz) * math.sqrt(p * (1 - p) / trials + zz / (4 * trials))
    # At the ends the two terms cancel exactly on paper and almost exactly in floating point.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return low, high


def t_interval(values_S: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """mean ± t · s / √S with S − 1 degrees of freedom. One value says nothing about its spread: (−∞, ∞).

    Values that are all alike give a width of 0, which no small sample deserves; a share is better shown together with the
    Wilson interval of its episodes (`share_interval`).
    """
    _check(values_S, confidence)
    n, mean = len(values_S), float(np.mean(values_S))
    if n == 1:
        return -math.inf, math.inf
    half = t_quantile((1 + confidence) / 2, n - 1) * float(np.std(values_S, ddof=1)) / math.sqrt(n)
    return mean - half, mean + half


def worth(shares_T: Sequence[float], variance: float, most: float) -> float:
    """How many independent episodes the tries at T tasks amount to, from each task's own mean over its tries.

    Tries at one task are alike, whoever makes them: seven at an easy task tell little more than one. The variance of the mean
    is that of the tasks' own means, s²/T; with N independent episodes, each of this `variance`, it would be variance/N; so
    N = variance · T / s², at least T (one try each) and at most `most` (all tries). Without any variance they are worth T.
    """
    tasks = len(shares_T)
    if not tasks or variance <= 0:
        return float(tasks)
    spread = float(np.var(shares_T, ddof=1)) if tasks > 1 else 0.0
    return min(most, max(tasks, variance * tasks / spread)) if spread else float(most)


def share_interval(shares_S: Sequence[float], episodes: float, confidence: float = 0.95) -> tuple[float, float]:
    """Of a share measured once per seed, on the same tasks: the smallest interval that holds both the t interval over seeds
    (how much training varies) and the Wilson interval over what the episodes of all seeds are `worth` (how much the tasks
    and their sampling vary), within [0, 1].

    One seed has the Wilson interval alone.
    """
    p = float(np.mean(shares_S))
    low, high = wilson(p * episodes, episodes, normal_quantile((1 + confidence) / 2))
    if len(shares_S) > 1:
        t_low, t_high = t_interval(shares_S, confidence)
        low, high = min(low, t_low), max(high, t_high)
    return max(0.0, low), min(1.0, high)


def paired_interval(won: float, lost: float, trials: float, confidence: float = 0.95) -> tuple[float, float]:
    """Of the difference of two success shares on the same episodes, `won` by the one alone and `lost` by it alone.

    Agresti and Min (2005): half an episode is added to each of the four outcomes of a pair, n* = n + 2, and then
    (won − lost)/n* ± z √(won + lost + 1 − (won − lost)²/n*) / n*. No trials: (−1, 1), nothing is known.
    """
    if trials == 0:
        return -1.0, 1.0
    n, gap = trials + 2, won - lost
    half = normal_quantile((1 + confidence) / 2) * math.sqrt(won + lost + 1 - gap * gap / n) / n
    return max(-1.0, gap / n - half), min(1.0, gap / n + half)


def mean_interval(shares_F: Sequence[float], intervals_F: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of the mean of F independent shares, from the interval of each (Zou and Donner's recovery of variances):

    low = mean − √Σ(pᵢ − lᵢ)² / F,  high = mean + √Σ(uᵢ − pᵢ)² / F. No share: (0, 1), nothing is known.
    """
    if not shares_F:
        return 0.0, 1.0
    below = math.hypot(*(p - low for p, (low, _) in zip(shares_F, intervals_F, strict=True)))
    above = math.hypot(*(high - p for p, (_, high) in zip(shares_F, intervals_F, strict=True)))
    count, mean = len(shares_F), sum(shares_F) / len(shares_F)
    return max(0.0, mean - below / count), min(1.0, mean + above / count)


def bootstrap(
    values_S: Sequence[float], confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean over resampled values. With fewer than about ten values it is too narrow."""
    _check(values_S, confidence)
    values = np.asarray(values_S, float)
    rng = np.random.default_rng(seed)
    means_B = values[rng.integers(len(values), size=(resamples, len(values)))].mean(1)
    return _percentiles(means_B, confidence)


def paired_interval_over_tasks(gaps_TN: Sequence[Sequence[int]], confidence: float = 0.95) -> tuple[float, float]:
    """`paired_interval` where each of T tasks was played in several pairs: +1 won, −1 lost, 0 neither. Pairs at one task are
    alike, so they count for what they are worth."""
    gaps = [gap for own in gaps_TN for gap in own]
    if not gaps:
        return paired_interval(0, 0, 0, confidence)
    pairs = worth([sum(own) / len(own) for own in gaps_TN], float(np.var(gaps)), len(gaps))
    won, lost = gaps.count(1) / len(gaps), gaps.count(-1) / len(gaps)
    return paired_interval(won * pairs, lost * pairs, pairs, confidence)


def crossed_bootstrap(
    outcomes_ST: np.ndarray, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean of a table seeds × tasks: seeds are resampled, and tasks, the same for all of them."""
    outcomes_ST = np.asarray(outcomes_ST, float)
    if outcomes_ST.ndim != 2 or not outcomes_ST.size:
        raise ValueError(f"outcomes must be a table of seeds × tasks with something in it, not of shape {outcomes_ST.shape}")
    _check(outcomes_ST[:, 0].tolist(), confidence)
    rng = np.random.default_rng(seed)
    seeds, tasks = outcomes_ST.shape
    rows_BS, columns_BT = rng.integers(seeds, size=(resamples, seeds)), rng.integers(tasks, size=(resamples, tasks))
    means_B = np.array([outcomes_ST[np.ix_(s, t)].mean() for s, t in zip(rows_BS, columns_BT, strict=True)])
    return _percentiles(means_B, confidence)


def normal_quantile(p: float) -> float:
    """Where the standard normal distribution has the share `p` below it."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(p)


def t_quantile(p: float, freedom: int) -> float:
    """Where Student's t distribution has the share `p` below it; found by bisection of its distribution function.

    >>> round(t_quantile(0.975, 4), 3)
    2.776
    """
    if not 0 < p < 1 or freedom < 1:
        raise ValueError(f"no quantile {p} of Student's t with {freedom} degrees of freedom")
    if p < 0.5:
        return -t_quantile(1 - p, freedom)
    low, high = 0.0, 1.0
    while t_below(high, freedom) < p:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_below(middle, freedom) < p else (low, middle)
    return high


def t_below(t: float, freedom: int) -> float:
    """P(T ≤ t) of Student's t = 1 − ½ I_x(ν/2, ½) with x = ν / (ν + t²), for t ≥ 0."""
    if t < 0:
        return 1 - t_below(-t, freedom)
    return 1 - 0.5 * incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d, fraction = 1.0, 0.0, 1.0
    for i in range(1000):
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + term * d or tiny)
        c = 1 + term / c or tiny
        fraction *= c * d
        if abs(1 - c * d) < 1e-15:
            break
    return front * (fraction - 1)


def _percentiles(means_B: np.ndarray, confidence: float) -> tuple[float, float]:
    low, high = np.percentile(means_B, [50 * (1 - confidence), 50 * (1 + confidence)])
    return float(low), float(high)


def _check(values_S: Sequence[float], confidence: float) -> None:
    if not len(values_S):
        raise ValueError("an interval needs at least one value")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} must be between 0 and 1")
