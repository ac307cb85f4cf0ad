"""How far two steps may be apart and still be compared: appendix F's search.

A radius is good where the median part has 4 to 8 members: small enough that members share a value (the bias of a part's mean
is at most 2Lε), large enough that few steps stand alone (they get no step-level credit at all).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tacit.credit.embedders import Features
from tacit.credit.partitions import by_cosine

LOW, HIGH, TARGET, PROBES = 0.02, 0.40, (4.0, 8.0), 6


def median_part(parts: Sequence[np.ndarray]) -> float:
    """The median number of members over all parts of all groups."""
    sizes = np.concatenate([np.bincount(part_N[part_N >= 0]) for part_N in parts]) if parts else np.zeros(0)
    return float(np.median(sizes)) if len(sizes) else 0.0


def search_radius(
    features: Sequence[Features],
    low: float = LOW,
    high: float = HIGH,
    target: tuple[float, float] = TARGET,
    probes: int = PROBES,
) -> tuple[float, float]:
    """(ε, median part size): bisect [low, high] until the median is within the target.

    After `probes` tries the one that came nearest is taken (the earliest of equals), so a geometry without a good radius
    still gets the least bad one.
    """
    best = (np.inf, 0.0, 0.0)
    for _ in range(probes):
        epsilon = (low + high) / 2
        median = median_part([by_cosine(rows, epsilon) for rows in features])
        missed = max(target[0] - median, median - target[1], 0.0)
        if missed < best[0]:
            best = (missed, epsilon, median)
        if missed == 0.0:
            break
        low, high = (epsilon, high) if median < target[0] else (low, epsilon)
    return best[1], best[2]
