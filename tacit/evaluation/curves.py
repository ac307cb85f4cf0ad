"""What a learning curve says beside its end. A curve is [(step, value)] in the order of steps, as it was measured."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

Curve = Sequence[tuple[int, float]]


def steps_to(curve: Curve, threshold: float) -> int | None:
    """The first *measured* step at or above the threshold; None where no measurement was.

    Nothing is interpolated: between two evaluations nobody looked, so the answer is late by up to one interval.
    """
    return next((step for step, value in curve if value >= threshold), None)


def median_steps_to(steps: Sequence[int | None]) -> float | None:
    """The median over seeds, in which one that never got there counts as later than all others; None where the median seed
    never did. A mean over those that did would reward a method for failing on its slow seeds."""
    if not steps:
        return None
    ordered = sorted(float("inf") if s is None else float(s) for s in steps)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return None if median == float("inf") else median


def area(curve: Curve) -> float | None:
    """Mean height of the curve between its first and last step (trapezoids). None for fewer than two steps."""
    if len(curve) < 2 or curve[-1][0] == curve[0][0]:
        return None
    pairs = itertools.pairwise(curve)
    return sum((t1 - t0) * (v0 + v1) / 2 for (t0, v0), (t1, v1) in pairs) / (curve[-1][0] - curve[0][0])
