"""Number formats of the pages."""

from __future__ import annotations

import math

import pytest

from tacit.report.page import (
    MINUS,
    format_count,
    format_duration,
    format_interval,
    format_number,
    format_percent,
    format_points,
    format_probability,
    format_short,
)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ([format_short(x) for x in (0.0, 0.123456, 12345.0, 1.5e-7, -0.5, -2e-9, 1e8)],
         ["0", "0.1235", "12,345", "1.5e-07", f"{MINUS}0.5", f"{MINUS}2e-09", "1e+08"]),
        ([format_duration(s) for s in (4, 59.6, 75, 3725)], ["4.0 s", "1 min 00 s", "1 min 15 s", "1 h 02 min"]),
        ([format_points(x) for x in (0.125, -0.05, 0.0)], ["+12.5", f"{MINUS}5.0", "0.0"]),
        ([format_percent(0.25), format_percent(-0.001, 2), format_number(1234.5)], ["25.0%", f"{MINUS}0.10%", "1,234.5"]),
        ([format_count(1234567)], ["1,234,567"]),
        ([format_interval((0.1, 0.25)), format_interval([0.1]), format_interval("ab"), format_interval([0.1, None])],
         ["[10.0, 25.0]", "", "", ""]),
        ([format_probability(0.0004), format_probability(0.0417)], ["< 0.001", "0.042"]),
    ],
)  # fmt: skip
def test_number_formats(written, text):
    assert written == text


@pytest.mark.parametrize(
    "show", [format_short, format_duration, format_points, format_percent, format_number, format_count, format_probability]
)
@pytest.mark.parametrize("value", [None, "text", True, math.nan, math.inf, 1e200, 10**400, [], {}])
def test_value_that_is_not_a_number_is_a_dash(show, value):
    assert show(value) == "–"
