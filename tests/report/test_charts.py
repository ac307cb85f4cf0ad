"""Charts: scales that end on round numbers, thinning that keeps the end, labels that do not touch."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsed import Page

from tacit.report.charts import MOST_POINTS, Chart, Point, Series, draw, thinned, ticks_between
from tacit.report.forest import Row, forest
from tacit.report.markup import data_block, tag


def line(*values: float, name: str = "a", colour: int = 0) -> Series:
    return Series(name, [Point(i, y) for i, y in enumerate(values)], colour)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.25, 0.5, 0.75, 1]), (1, 40, [10, 20, 30, 40]), (-0.3, 0.1, [-0.3, -0.2, -0.1, 0, 0.1])],
)
def test_ticks(low, high, ticks):
    assert ticks_between(low, high) == pytest.approx(ticks)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30), st.booleans(), st.sampled_from([None, 0.0]))
def test_whatever_the_values_the_drawing_holds_them(values, share, floor):
    html = draw(Chart("t", [line(*values)], share=share, floor=floor, marks=True))
    Page(html)
    heights = [float(y) for y in re.findall(r'cy="([-\d.]+)"', html)]
    assert len(heights) == len(values) and all(7.9 <= y <= 158.1 for y in heights)


def test_constant_and_single_values():
    for values in ([0.0], [5.0, 5.0], [-2.0]):
        Page(draw(Chart("t", [line(*values)])))
    assert "nothing was recorded" in draw(Chart("t", [Series("a", [])]))


def test_thinning_keeps_the_mean_and_the_end():
    points = [Point(i, float(i)) for i in range(1, 1001)]
    few = thinned(points)
    assert len(few) <= MOST_POINTS and few[-1].x == 1000 and few[0].y == pytest.approx(3.0)
    assert "each point is the mean of 5 neighbours" in draw(Chart("t", [Series("a", points)]))
    assert thinned(points[:MOST_POINTS]) == points[:MOST_POINTS]


def test_labels_of_lines_that_end_together_are_pushed_apart():
    many = [line(0.0, 0.5 + i * 1e-3, name=f"m{i}", colour=i) for i in range(6)]
    heights = sorted(float(y) for y in re.findall(r'y="([\d.]+)" dy="0.32em" class="name', draw(Chart("t", many, share=True))))
    assert len(heights) == 6 and all(b - a >= 11.9 for a, b in pairwise(heights))
    assert heights[-1] <= 158.1


def test_bands_are_drawn_where_they_are_known():
    points = [Point(0, 0.5, 0.4, 0.6), Point(1, 0.6, 0.5, 0.7)]
    assert 'class="band c0"' in draw(Chart("t", [Series("a", points)])) and "band c0" not in draw(Chart("t", [line(1, 2)]))


def test_forest_plots_are_shares_on_a_scale_from_zero():
    html = forest("Final", [Row("a", 0.5, 0.4, 0.65, [0.45, 0.55], 0), Row("b", 0.0, 0.0, 0.0, [], 1)], "note")
    page = Page(html)
    assert page.all("svg")[0]["aria-label"] == "Final. a 50.0%, interval 40.0% to 65.0%; b 0.0%, interval 0.0% to 0.0%."
    assert "0% 20% 40% 60% 80%" in page.text and html.count('class="seed') == 2
    assert forest("Final", [], "note") is None and Page(forest("F", [Row("a", 0, 0, 0, [], 0)], ""))


def test_markup_escapes_text_and_attributes():
    assert tag("p", "a < b & c", title='say "x"') == '<p title="say &quot;x&quot;">a &lt; b &amp; c</p>'
    assert (
        tag("p", None, [tag("br"), "\x07"], cls="x", hidden=True, id=None)
        == '<p class="x" hidden><br>\N{REPLACEMENT CHARACTER}</p>'
    )


def test_data_blocks_cannot_be_left():
    html = data_block("d", {"text": "</script><!--&\u2028 \ud800"})
    assert html.count("<") == 2 and Page(html).blocks["d"]["text"] == "</script><!--&\u2028 ?"
