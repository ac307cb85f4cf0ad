"""How far two steps may be apart and still be compared: appendix F's search.

A radius is good where the median part has 4 to 8 members: small enough that members share a value (the bias of a part's mean
is at most 2Lε), large enough that few steps stand alone (they get no step-level credit at all).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tacit.credit.embedders import Features
from tacit.credit.partitions import by_cosine

LOW, HIGH, TARGET, PROBES = 0.02, 0.40, (4.0, 8.0), 6
LEAST = LOW / 1024
"""so far down goes the search where all of the published range is too wide: a model's states may nearly all point one way"""


def median_part(parts: Sequence[np.ndarray]) -> float:
    """The median number of members over all parts of all groups."""
    sizes = np.concatenate([np.bincount(part_N[part_N >= 0]) for part_N in parts]) if parts else np.zeros(0)
    return float(np.median(sizes)) if len(sizes) else 0.0


def search_radius(features: Sequence[Features]) -> tuple[float, float]:
    """(ε, median part size): bisect the published range until the median is within the target, and where the nearest is
    still too wide what lies below, by powers.

    After so many probes the one that came nearest is taken (the earliest of equals), so a geometry without a good radius
    still gets the least bad one.
    """
    found = _bisect(features, LOW, HIGH, lambda low, high: (low + high) / 2)
    if found[2] > TARGET[1]:
        below = _bisect(features, LEAST, LOW, lambda low, high: float(np.sqrt(low * high)))
        found = min(found, below, key=lambda probe: probe[0])
    return found[1:]


def _bisect(
    features: Sequence[Features], low: float, high: float, between: Callable[[float, float], float]
) -> tuple[float, float, float]:
    """(by how many members the nearest probe missed the target, that probe, its median)"""
    best = (np.inf, 0.0, 0.0)
    for _ in range(PROBES):
        epsilon = between(low, high)
        median = median_part([by_cosine(rows, epsilon) for rows in features])
        missed = max(TARGET[0] - median, median - TARGET[1], 0.0)
        if missed < best[0]:
            best = (missed, epsilon, median)
        if missed == 0.0:
            break
        low, high = (epsilon, high) if median < TARGET[0] else (low, epsilon)
    return best
