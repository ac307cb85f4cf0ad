"""Plots: every seed is visible, labels do not overlap, line styles differ."""

from __future__ import annotations

from itertools import pairwise

import pytest
from matplotlib.figure import Figure

from tacit.evaluation.plots import (
    Arrivals,
    Point,
    Series,
    Spread,
    draw_arrivals,
    draw_lines,
    draw_spreads,
    label_line_ends,
    line_style,
    mean_series,
    spread_heights,
)


@pytest.fixture
def axes():
    return Figure().subplots()


def dots(axes) -> list[tuple[float, float, str]]:
    """(x, y, fill color)"""
    return [(*line.get_xydata()[0], str(line.get_markerfacecolor())) for line in axes.lines if line.get_marker() == "o"]


def test_labels_are_spaced_and_line_styles_differ():
    assert spread_heights([3.0, 1.0, 1.2], 1.0) == [3.0, 1.0, 2.0]
    assert spread_heights([9.5, 9.9, 10.0, 2.0], 1.0, highest=10.0) == [8.0, 9.0, 10.0, 2.0], "none above the top"
    assert len({line_style(i) for i in range(20)}) == 20


def test_labels_of_close_line_ends_are_spread(axes):
    many = [Series(f"m{i}", [Point(0, 0.0), Point(1, 0.99 + i * 1e-3)], i) for i in range(6)]
    draw_lines(axes, many)
    axes.set_ylim(0, 1)
    label_line_ends(axes, many, 0.08)
    heights = sorted(text.xy[1] for text in axes.texts)
    assert len(heights) == 6 and all(b - a >= 0.0799 for a, b in pairwise(heights)) and heights[-1] <= 1


def test_mean_over_seeds_only_where_all_were_measured():
    mean = mean_series("grpo", [{0: 0.1, 5: 0.3, 10: 0.9}, {0: 0.3, 5: 0.5}], 2)
    assert [(p.x, p.y) for p in mean.points] == [(0, pytest.approx(0.2)), (5, pytest.approx(0.4))]
    assert [[p.y for p in line] for line in mean.thin] == [[0.1, 0.3, 0.9], [0.3, 0.5]] and mean.color == 2
    assert mean_series("none", [], 0).points == []


def test_bands_and_seed_lines_are_drawn_if_known(axes):
    draw_lines(axes, [Series("a", [Point(0, 0.5, 0.4, 0.6), Point(1, 0.6, 0.5, 0.7)]), Series("b", [Point(0, 1), Point(1, 2)])])
    assert len(axes.collections) == 1 and len(axes.lines) == 2
    draw_lines(axes, [mean_series("c", [{0: 0.1, 1: 0.2}, {0: 0.3, 1: 0.4}], 1)], marks=True)
    assert len(axes.lines) == 5 and len(dots(axes)) == 1


def test_arrivals_draw_one_dot_per_seed_and_mark_unreached_ones(axes):
    draw_arrivals(axes, [Arrivals("grpo", [5, 10, None], 0), Arrivals("gigpo", [5, 5, 5], 1)], last=20)
    drawn = dots(axes)
    five, ten, never, *others = (x for x, _, _ in drawn)
    assert five == 5 and ten == 10 and never > 20 and others == [5, 5, 5]
    assert [fill for _, _, fill in drawn] == [line_style(0)[0], line_style(0)[0], "none", *[line_style(1)[0]] * 3]
    heights = [y for _, y, _ in drawn]
    assert len(set(heights[3:])) == 3 and max(heights[:3]) < min(heights[3:]), "seeds do not hide one another, nor methods"
    assert [label.get_text() for label in axes.get_xticklabels()][-1] == "never"


def test_many_seeds_stay_in_their_row(axes):
    draw_arrivals(axes, [Arrivals("a", [1.0] * 50, 0), Arrivals("b", [0.0], 1)], last=0)
    heights = [y for _, y, _ in dots(axes)]
    assert max(heights[:50]) < heights[50] - 0.5


def test_spread_shows_every_seed_and_the_mean(axes):
    draw_spreads(axes, [Spread("a", 0.5, 0.4, 0.65, [0.45, 0.55], 0), Spread("b", 0.0, 0.0, 0.0, [], 1)])
    assert [list(line.get_xdata()) for line in axes.lines[:3]] == [[0.4, 0.65], [0.45, 0.55], [0.5]]
    assert [text.get_text() for text in axes.texts] == ["50.0%", "0.0%"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
