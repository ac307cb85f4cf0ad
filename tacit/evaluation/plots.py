"""Measurements drawn with matplotlib: lines with bands, means with intervals, and when each seed got somewhere.

Everything is drawn into axes that are given: a comparison's file and a chart on a page differ in size and dress alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

COLOURS = ("#0072b2", "#c05000", "#00805c", "#a8427f", "#96720a", "#2f8fc4", "#6b4fa0", "#4d565e")
"""after Okabe and Ito, told apart by colour-blind readers too, and dark enough for words"""
STYLES = ("-", "--", "-.", ":")
PLAIN: dict[Any, Any] = {"svg.fonttype": "none", "text.parse_math": False}
"""settings of matplotlib for every picture: words stay words, and a name with two dollar signs is a name"""


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
    colour: int = 0
    each: Sequence[Sequence[Point]] = ()
    """the lines of which this is the mean, drawn thin"""


@dataclass(frozen=True)
class Spread:
    """Final values of a method: mean, interval and every seed."""

    name: str
    mean: float
    low: float
    high: float
    seeds: Sequence[float]
    colour: int = 0


@dataclass(frozen=True)
class Arrivals:
    """The first measured iteration of each seed of a method at or above a rate; None where there was none."""

    name: str
    steps: Sequence[float | None]
    colour: int = 0


def look(index: int) -> tuple[str, str]:
    """Colour and line style of the n-th method; past the colours, another style."""
    return COLOURS[index % len(COLOURS)], STYLES[index // len(COLOURS) % len(STYLES)]


def mean_series(name: str, curves: Sequence[dict[float, float]], colour: int) -> Series:
    """The mean over seeds, at the steps all of them were measured at, and every seed."""
    shared = sorted(set.intersection(*map(set, curves)) if curves else ())
    means = [Point(step, sum(curve[step] for curve in curves) / len(curves)) for step in shared]
    return Series(name, means, colour, [[Point(*at) for at in curve.items()] for curve in curves])


def draw_lines(axes: Any, series: Sequence[Series], marks: bool = False) -> None:
    """A line each, its band and what it is the mean of behind it. Lone points are dots, and all are where `marks` says so."""
    axes.locator_params(axis="x", integer=True)  # iterations, steps and turns are whole
    for s in series:
        colour, style = look(s.colour)
        known = [(p.x, p.low, p.high) for p in s.points if p.low is not None and p.high is not None]
        if len(known) > 1:
            axes.fill_between(*zip(*known, strict=True), color=colour, alpha=0.14, linewidth=0, clip_on=False)
        for line in s.each:
            axes.plot([p.x for p in line], [p.y for p in line], color=colour, linewidth=0.7, alpha=0.4, clip_on=False)
        dot = "o" if marks or len(s.points) == 1 else ""
        x, y = [p.x for p in s.points], [p.y for p in s.points]
        axes.plot(x, y, style, color=colour, linewidth=1.75, marker=dot, markersize=5, clip_on=False)


def name_ends(axes: Any, series: Sequence[Series], gap: float) -> None:
    """Each name beside the end of its line, at least `gap` of the height from the next."""
    low, high = axes.get_ylim()
    for s, y in zip(series, apart([s.points[-1].y for s in series], gap * (high - low), high), strict=True):
        _beside(axes, y, s.name, look(s.colour)[0], 6)


def apart(heights: Sequence[float], gap: float, highest: float = float("inf")) -> list[float]:
    """Heights for labels, in the same order: moved up until they are `gap` apart, and down again from above `highest`.

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
    """One line per method: what overlaps is seen at once. Seeds are the small marks."""
    for y, row in enumerate(rows):
        colour, _ = look(row.colour)
        axes.plot([row.low, row.high], [y, y], color=colour, linewidth=2, clip_on=False)
        axes.plot(row.seeds, [y] * len(row.seeds), "|", color=colour, markersize=10, alpha=0.65, clip_on=False)
        axes.plot([row.mean], [y], "o", color=colour, markersize=8, clip_on=False)
        _beside(axes, y, f"{100 * row.mean:.1f}%", colour, 10)
    _name_rows(axes, rows)


def draw_arrivals(axes: Any, rows: Sequence[Arrivals], last: float) -> None:
    """A dot per seed at the iteration it got there; hollow, beyond the last measured iteration, where it never did."""
    end = last or 1.0
    never = end * 1.2
    for y, row in enumerate(rows):
        colour, _ = look(row.colour)
        for number, step in enumerate(row.steps):
            # Seeds that arrive together stand side by side, within their own row.
            shift = 0.5 * (number / (len(row.steps) - 1) - 0.5) if len(row.steps) > 1 else 0.0
            fill = "none" if step is None else colour
            axes.plot(
                [never if step is None else step], [y + shift], "o", color=colour, markersize=5.5, markerfacecolor=fill,
                clip_on=False,
            )  # fmt: skip
    axes.axvline(end * 1.1, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlim(-0.03 * end, end * 1.3)
    ticks = [tick for tick in axes.get_xticks() if 0 <= tick <= end and tick == int(tick)]
    axes.set_xticks([*ticks, never], [*(f"{tick:g}" for tick in ticks), "never"])
    _name_rows(axes, rows)


def _beside(axes: Any, y: float, text: str, colour: str, away: float) -> None:
    """To the right of the axes."""
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    axes.annotate(text, (1, y), (away, 0), color=colour, weight="bold", **place)


def _name_rows(axes: Any, rows: Sequence[Spread | Arrivals]) -> None:
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.grid(axis="x")
    for label, row in zip(axes.get_yticklabels(), rows, strict=False):  # axes side by side have the names once
        label.set(color=look(row.colour)[0], weight="bold")
