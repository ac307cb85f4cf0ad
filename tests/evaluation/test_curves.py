from __future__ import annotations

import pytest

from tacit.evaluation.statistics import area, median_steps_to, steps_to

CURVE = [(0, 0.1), (5, 0.4), (10, 0.3), (20, 0.6)]


def test_steps_to_is_the_first_step_at_the_threshold():
    assert [steps_to(CURVE, t) for t in (0.05, 0.1, 0.35, 0.4, 0.5, 0.7)] == [0, 0, 5, 5, 20, None]
    assert steps_to([], 0.1) is None


def test_median_counts_unreached_seeds_as_latest():
    assert median_steps_to([5, None, 20]) == 20
    assert median_steps_to([5, None, None]) is None
    assert median_steps_to([5, 10, 20, None]) == 15
    assert median_steps_to([5, None]) is None  # exactly half of the seeds: the median is unknown
    assert median_steps_to([]) is None


def test_area_is_the_mean_height():
    # (5·0.25 + 5·0.35 + 10·0.45) / 20
    assert area(CURVE) == pytest.approx(0.375)
    assert area([(0, 0.3), (7, 0.3)]) == pytest.approx(0.3)
    assert area([(0, 0.3)]) is None and area([]) is None
