"""Matplotlib plots: lines with bands, means with intervals, and when each seed reached a threshold. Callers pass the axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

COLORS = ("#0072b2", "#c05000", "#00805c", "#a8427f", "#96720a", "#2f8fc4", "#6b4fa0", "#4d565e")
"""Okabe–Ito colors: distinguishable for color-blind readers, dark enough for text"""
STYLES = ("-", "--", "-.", ":")
PLAIN: dict[Any, Any] = {"svg.fonttype": "none", "text.parse_math": False}
"""matplotlib settings of every plot: text stays text, and dollar signs are not math"""


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[Point]
    color: int = 0
    thin: Sequence[Sequence[Point]] = ()  # the averaged lines, drawn thin


@dataclass(frozen=True)
class Spread:
    """Final values of a method: mean, interval and seeds."""

    name: str
    mean: float
    low: float
    high: float
    seeds: Sequence[float]
    color: int = 0


@dataclass(frozen=True)
class Arrivals:
    """First measured iteration of each seed at or above a rate; None if never."""

    name: str
    steps: Sequence[float | None]
    color: int = 0


def line_style(index: int) -> tuple[str, str]:
    """Color and line style of the n-th method; more methods than colors change the style."""
    return COLORS[index % len(COLORS)], STYLES[index // len(COLORS) % len(STYLES)]


def mean_series(name: str, curves: Sequence[dict[float, float]], color: int) -> Series:
    """The mean over seeds at the steps that all of them measured, with the seeds' own lines."""
    shared = sorted(set.intersection(*map(set, curves)) if curves else ())
    means = [Point(step, sum(curve[step] for curve in curves) / len(curves)) for step in shared]
    return Series(name, means, color, [[Point(*at) for at in curve.items()] for curve in curves])


def draw_lines(axes: Any, series: Sequence[Series], marks: bool = False) -> None:
    """Lines with their bands. Single points are dots; `marks` draws all points."""
    axes.locator_params(axis="x", integer=True)  # iterations, steps and turns are whole
    for s in series:
        color, style = line_style(s.color)
        bounds = [(p.x, p.low, p.high) for p in s.points if p.low is not None and p.high is not None]
        if len(bounds) > 1:
            axes.fill_between(*zip(*bounds, strict=True), color=color, alpha=0.14, linewidth=0, clip_on=False)
        for line in s.thin:
            axes.plot([p.x for p in line], [p.y for p in line], color=color, linewidth=0.7, alpha=0.4, clip_on=False)
        dot = "o" if marks or len(s.points) == 1 else ""
        x, y = [p.x for p in s.points], [p.y for p in s.points]
        axes.plot(x, y, style, color=color, linewidth=1.75, marker=dot, markersize=5, clip_on=False)


def label_line_ends(axes: Any, series: Sequence[Series], gap: float) -> None:
    """Names at the ends of the lines, at least `gap` of the height apart."""
    low, high = axes.get_ylim()
    for s, y in zip(series, spread_heights([s.points[-1].y for s in series], gap * (high - low), high), strict=True):
        _right_of_axes(axes, y, s.name, line_style(s.color)[0], 6)


def spread_heights(heights: Sequence[float], gap: float, highest: float = float("inf")) -> list[float]:
    """Label heights in the same order, moved up until `gap` apart, then down from above `highest`.

    >>> apart([10.0, 10.0, 50.0], 5.0), apart([9.0, 10.0], 5.0, 10.0)
    ([10.0, 15.0, 50.0], [5.0, 10.0])
    """
    placed, order = list(heights), sorted(range(len(heights)), key=lambda i: heights[i])
    below, above = -float("inf"), highest + gap
    for i in order:
        placed[i] = below = max(heights[i], below + gap)
    for i in reversed(order):
        placed[i] = above = min(placed[i], above - gap)
    return placed


def draw_spreads(axes: Any, rows: Sequence[Spread]) -> None:
    """One row per method; small marks are seeds."""
    for y, row in enumerate(rows):
        color, _ = line_style(row.color)
        axes.plot([row.low, row.high], [y, y], color=color, linewidth=2, clip_on=False)
        axes.plot(row.seeds, [y] * len(row.seeds), "|", color=color, markersize=10, alpha=0.65, clip_on=False)
        axes.plot([row.mean], [y], "o", color=color, markersize=8, clip_on=False)
        _right_of_axes(axes, y, f"{100 * row.mean:.1f}%", color, 10)
    _name_rows(axes, rows)


def draw_arrivals(axes: Any, rows: Sequence[Arrivals], last: float) -> None:
    """A dot per seed at the iteration where it reached the rate; a hollow dot past the last iteration if it never did."""
    end = last or 1.0
    never = end * 1.2
    for y, row in enumerate(rows):
        color, _ = line_style(row.color)
        for number, step in enumerate(row.steps):
            # Seeds that arrive together are drawn side by side.
            shift = 0.5 * (number / (len(row.steps) - 1) - 0.5) if len(row.steps) > 1 else 0.0
            fill = "none" if step is None else color
            axes.plot(
                [never if step is None else step], [y + shift], "o", color=color, markersize=5.5, markerfacecolor=fill,
                clip_on=False,
            )  # fmt: skip
    axes.axvline(end * 1.1, color="gray", linewidth=0.8, linestyle=":")
    axes.set_xlim(-0.03 * end, end * 1.3)
    ticks = [tick for tick in axes.get_xticks() if 0 <= tick <= end and tick == int(tick)]
    axes.set_xticks([*ticks, never], [*(f"{tick:g}" for tick in ticks), "never"])
    _name_rows(axes, rows)


def _right_of_axes(axes: Any, y: float, text: str, color: str, offset: float) -> None:
    options = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    axes.annotate(text, (1, y), (offset, 0), color=color, weight="bold", **options)


def _name_rows(axes: Any, rows: Sequence[Spread | Arrivals]) -> None:
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.grid(axis="x")
    for label, row in zip(axes.get_yticklabels(), rows, strict=False):  # axes side by side have the names once
        label.set(color=line_style(row.color)[0], weight="bold")
