"""How sure a proportion is."""

from __future__ import annotations

import math


def wilson(successes: int, trials: int, z: float = 1.959963984540054) -> tuple[float, float]:
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
