"""Whether two agents differ: paired tests without assumptions about distributions, and a correction for asking often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> tuple[int, int, float]:
    """Exact McNemar test of two agents on the same episodes: (only first succeeded, only second succeeded, two-sided p).

    Episodes both won or both lost say nothing. Under the null hypothesis each of the n others is a fair coin:
    p = min(1, 2 · P(Binomial(n, ½) ≤ min(b, c))). No such episode: p = 1.
    """
    from scipy.special import bdtr

    if len(first) != len(second):
        raise ValueError(f"{len(first)} episodes cannot be paired with {len(second)}")
    b = sum(bool(x) and not y for x, y in zip(first, second, strict=True))
    c = sum(bool(y) and not x for x, y in zip(first, second, strict=True))
    return b, c, min(1.0, 2 * float(bdtr(min(b, c), b + c, 0.5)))


def sign_flip(differences_U: Sequence[float], resamples: int = 100_000, seed: int = 0) -> float:
    """Two-sided p of a paired permutation test of mean difference 0: were the two agents alike, each unit's difference could
    as well have had the other sign. The share of sign patterns whose mean is at least as far from 0.

    A unit is what was drawn independently: a seed, or a task. All patterns are tried where there are no more than `resamples`,
    so up to 16 units; else that many random ones, of which the observed one counts as one: p is never 0. So few units cannot be
    significant: the smallest p of n exact ones is 2 / 2ⁿ, which is 0.0625 for five seeds.
    """
    from scipy.stats import permutation_test

    values = np.asarray(differences_U, float)
    if values.ndim != 1 or not len(values):
        raise ValueError("a paired test needs at least one difference")
    if len(values) == 1:
        return 1.0
    found = permutation_test(
        (values,),
        lambda flipped, axis: np.abs(flipped.sum(axis)).round(12),  # sums of the same numbers in another order are as far
        permutation_type="samples",
        alternative="greater",
        n_resamples=resamples,
        batch=10_000,
        vectorized=True,
        rng=np.random.default_rng(seed),
    )
    return float(found.pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the k-th smallest of m is multiplied by m − k + 1, and none falls below a smaller one's.

    Calling those at most α different is then wrong about any of them with probability at most α, however they depend.
    """
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    corrected, worst = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(ps) - rank) * ps[i]))
        corrected[i] = worst
    return corrected
