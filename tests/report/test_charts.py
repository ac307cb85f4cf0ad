"""Charts: round tick values, thinning that keeps the end, deterministic output."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed import Page
from written import HOSTILE

from tacit.evaluation.plots import COLORS, Arrivals, Point, Series, Spread
from tacit.report.page import MAX_POINTS, choose_ticks, draw_arrivals, draw_chart, draw_spreads, thin_points


def line(*values: float, name: str = "a", color: int = 0) -> Series:
    return Series(name, [Point(i, y) for i, y in enumerate(values)], color)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (1, 39, [0, 10, 20, 30, 40]),
        (-0.3, 0.1, [-0.3, -0.2, -0.1, 0, 0.1]),
        (0, 0, [0, 0.25, 0.5, 0.75, 1]),
        (5, 5, [0, 2, 4, 6]),
        (-2, -2, [-2, -1.5, -1, -0.5, 0]),
    ],
)
def test_axis_ends_on_round_numbers(low, high, ticks):
    assert choose_ticks(low, high) == pytest.approx(ticks)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e99, 1e99), min_size=1, max_size=30), st.booleans(), st.sampled_from([math.inf, 0.0]))
def test_chart_contains_all_values(values, share, floor):
    html = draw_chart("t", [line(*values)], share=share, floor=floor, marks=True)
    Page(html)
    heights = [float(y) for y in re.findall(r'<use [^>]*y="([-\d.]+)" style="fill: var\(--c0\); stroke', html)]
    assert len(heights) == len(values) and all(7.9 <= y <= 158.1 for y in heights)


def test_thinning_keeps_the_mean_and_the_end():
    points = [Point(i, float(i)) for i in range(1, 1001)]
    few = thin_points(points)
    assert len(few) <= MAX_POINTS and few[-1].x == 1000 and few[0].y == pytest.approx(3.0)
    assert "each point is the mean of 5 neighbors" in draw_chart("t", [Series("a", points)])
    assert thin_points(points[:MAX_POINTS]) == points[:MAX_POINTS]


def test_chart_uses_page_colors_and_unique_ids():
    charts = [draw_chart(f"t{n}", [line(1, n), line(3, 4, name="b", color=1)], marks=True) for n in range(2)]
    assert charts[0] == draw_chart("t0", [line(1, 0), line(3, 4, name="b", color=1)], marks=True), "the same every time"
    html = "".join(charts)
    assert not any(color in html for color in COLORS) and "font-family" not in html
    assert "stroke: var(--c0)" in html and "stroke: var(--c1)" in html and "stroke: var(--rule)" in html
    names = re.findall(r' id="([^"]*)"', html)
    assert len(names) == len(set(names)), "ids are the chart's own"
    assert len(charts[0]) < 6_000


def test_tick_labels_have_all_digits():
    assert Page(draw_chart("t", [line(0.0151, 0.0188)])).text.endswith("iteration 0.015 0.016 0.017 0.018 0.019")


def test_several_lines_are_named_with_values_for_the_script():
    page = Page(draw_chart("t", [line(0, 1, name="grpo"), line(1, 2, name="a method with a long name", color=9)]))
    assert "grpo" in page.text and "a method with a l…" in page.text
    chart = json.loads(page.all("svg")[0]["data-chart"])
    assert [(s["name"], s["color"], s["points"]) for s in chart["series"]] == [
        ("grpo", 0, [[0, 0.0], [1, 1.0]]),
        ("a method with a l…", 1, [[0, 1.0], [1, 2.0]]),
    ]


def test_hostile_names_are_escaped():
    strange = f"$x$ {HOSTILE} \ud800"
    for html in (
        draw_chart(strange, [line(1, 2, name=strange), line(2, 3, name="b")], note=strange),
        draw_spreads(strange, [Spread("$a$ <b>\x1b", 0.5, 0.4, 0.6, [], 0)], strange),
        draw_arrivals(strange, [Arrivals("$a$ <b>\x1b", [1, None], 0)], 2),
    ):
        page = Page(html)
        assert not page.all("img") and not page.all("script") and "\x1b" not in html and html.encode()
    assert "$a$ <b>\N{REPLACEMENT CHARACTER}" in page.text


def test_forest_plot_shows_shares_from_zero():
    html = draw_spreads("Final", [Spread("a", 0.5, 0.4, 0.65, [0.45, 0.55], 0), Spread("b", 0.0, 0.0, 0.0, [], 1)], "note")
    page = Page(html)
    assert page.all("svg")[0]["aria-label"] == "Final. a 50.0%, interval 40.0% to 65.0%; b 0.0%, interval 0.0% to 0.0%."
    assert "0% 20% 40% 60% 80%" in page.text and "note" in page.text
    assert Page(draw_spreads("F", [Spread("a", 0, 0, 0, [], 0)], ""))


def test_arrivals_have_a_text_label():
    page = Page(draw_arrivals("at 50%", [Arrivals("grpo", [5, 10, None], 0), Arrivals("gigpo", [5, 5, 5], 1)], last=20))
    assert page.all("svg")[0]["aria-label"] == "at 50%. grpo 5, 10, never; gigpo 5, 5, 5."
    assert "0 5 10 15 20 never" in page.text
