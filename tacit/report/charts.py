"""Line charts as inline SVG: drawn here, so that they are there without a script; the script adds the values under the pointer.

A chart is 360 units wide, the width of a narrow telephone, so that its text is as large there as it is drawn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacit.report.markup import Child, Markup, escape, tag
from tacit.report.numbers import percent, short

WIDTH, HEIGHT = 360, 190
TOP, BOTTOM, LEFT, RIGHT = 8, 32, 44, 8
LETTER = 6.9
"""mean width of a letter of a label, which is bold"""
COLOURS = 8
"""series colours of page.css; further series begin again with other dashes"""
DASHES = ("", "6 3", "2 3")
MOST_POINTS = 240
"""more are drawn as means over neighbours: a chart has no more room"""


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


@dataclass(frozen=True)
class Chart:
    title: str
    series: Sequence[Series]
    x_label: str = "iteration"
    share: bool = False
    """values are shares, shown as percentages on a scale that ends at 0 and 100 where it comes near them"""
    band: str = ""
    """what the band around a line is"""
    note: str = ""
    marks: bool = False
    """draw the points themselves: few measurements, each of which counts"""
    floor: float | None = None
    """a value the scale must reach: 0 for lengths and counts"""


def draw(chart: Chart) -> Markup:
    """A figure: title with the last values, the drawing, what the band is and what was left out."""
    drawn = [Series(s.name, thinned(s.points), s.colour) for s in chart.series if s.points]
    if not drawn:
        return tag("figure", tag("figcaption", tag("b", chart.title), " nothing was recorded"), cls="chart")
    labels = len(drawn) > 1
    right = RIGHT + (min(110, 8 + LETTER * max(len(s.name) for s in drawn)) if labels else 0)
    x_range = _span([p.x for s in drawn for p in s.points])
    y_range, ticks = _scale(chart, drawn)
    place = _Place(x_range, y_range, LEFT, WIDTH - right, HEIGHT - BOTTOM, TOP)
    body: list[Child] = [*_axes(chart, place, ticks, x_range)]
    body += [_band(s, place) for s in drawn if len(s.points) > 1]
    body += [_line(s, place, chart.marks) for s in drawn]
    if labels:
        body += _labels(drawn, place)
    picture = tag(
        "svg",
        body,
        tag("g", cls="pointer"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        tabindex="0",
        aria_label=_sentence(chart, drawn),
        data_chart=json.dumps(_for_script(chart, drawn, place), separators=(",", ":")),
    )
    merged = max(math.ceil(len(s.points) / MOST_POINTS) for s in chart.series)
    notes = [chart.band, chart.note, f"each point is the mean of {merged} neighbours" if merged > 1 else ""]
    said = "; ".join(note for note in notes if note)
    # What the pointer reads must not move the drawing under it: one value has room in the caption, several go below.
    title = tag("b", chart.title, title=chart.title)
    note = tag("p", said, cls="quiet") if said else None
    if labels:
        return tag("figure", tag("figcaption", title), picture, note, tag("output", cls="several"), cls="chart")
    reading = tag("output", _value(chart, drawn[0].points[-1].y))
    return tag("figure", tag("figcaption", title, reading), picture, note, cls="chart")


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most MOST_POINTS: means over runs of neighbours, at the last x of each, so that the end stays the end."""
    size = math.ceil(len(points) / MOST_POINTS)
    if size <= 1:
        return list(points)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [Point(group[-1].x, sum(p.y for p in group) / len(group)) for group in groups]


def ticks_between(low: float, high: float, most: int = 4) -> list[float]:
    """Round values inside [low, high], at most `most` + 1 of them.

    >>> ticks_between(0, 1)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class _Place:
    """From values to the drawing."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: float
    right: float
    bottom: float
    top: float

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def at(self, x: float, y: float) -> str:
        return f"{self.x(x):.1f} {self.y(y):.1f}"


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 1, high + 1)


def _scale(chart: Chart, drawn: Sequence[Series]) -> tuple[tuple[float, float], list[float]]:
    values = [v for s in drawn for p in s.points for v in (p.y, p.low, p.high) if v is not None]
    low, high = min(values), max(values)
    if chart.floor is not None:
        low = min(low, chart.floor)
    if chart.share:
        low = 0.0 if 0 <= low < 0.5 else low
        high = 1.0 if 0.75 < high <= 1 else high
    if high - low < 1e-9 * max(1.0, abs(high)):
        pad = abs(high) * 0.5 or 1.0
        low, high = (low, high + pad) if chart.floor is not None or chart.share else (low - pad, high + pad)
    ticks = ticks_between(low, high)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else high - low
    # The scale ends on a tick where the next one is near, and a hair beyond the data where it is not.
    top = math.ceil(high / step - 1e-9) * step
    bottom = math.floor(low / step + 1e-9) * step
    return (bottom, top), [bottom + k * step for k in range(round((top - bottom) / step) + 1)]


def _axes(chart: Chart, place: _Place, ticks: Sequence[float], x_range: tuple[float, float]) -> list[Markup]:
    parts = []
    for value in ticks:
        y = f"{place.y(value):.1f}"
        parts.append(tag("line", x1=place.left, x2=f"{place.right:.1f}", y1=y, y2=y, cls="grid"))
        parts.append(tag("text", _value(chart, value, axis=True), x=place.left - 6, y=y, dy="0.32em", cls="tick y"))
    for value in ticks_between(*x_range):
        if value == int(value):  # iterations and turns are whole
            x = f"{place.x(value):.1f}"
            parts.append(tag("text", short(value), x=x, y=place.bottom + 14, cls="tick x"))
    parts.append(tag("text", chart.x_label, x=f"{place.right:.1f}", y=HEIGHT - 3, cls="tick label"))
    return parts


def _line(series: Series, place: _Place, marks: bool) -> Markup:
    colour, dash = series.colour % COLOURS, DASHES[series.colour // COLOURS % len(DASHES)]
    path = "M" + "L".join(place.at(p.x, p.y) for p in series.points)
    line = tag("path", d=path, cls=f"line c{colour}", stroke_dasharray=dash or None)
    if not marks and len(series.points) > 1:
        return line
    dots = [
        tag("circle", cx=f"{place.x(p.x):.1f}", cy=f"{place.y(p.y):.1f}", r="2.6", cls=f"dot c{colour}") for p in series.points
    ]
    return tag("g", line, dots)


def _band(series: Series, place: _Place) -> Markup | None:
    known = [(p.x, p.low, p.high) for p in series.points if p.low is not None and p.high is not None]
    if len(known) < 2:
        return None
    upper = "L".join(place.at(x, high) for x, _, high in known)
    lower = "L".join(place.at(x, low) for x, low, _ in reversed(known))
    return tag("path", d=f"M{upper}L{lower}Z", cls=f"band c{series.colour % COLOURS}")


def _labels(drawn: Sequence[Series], place: _Place) -> list[Markup]:
    """Each name beside the end of its line; those that would touch are pushed apart, top to bottom."""
    gap = 12.0
    ends = sorted(((place.y(s.points[-1].y), s) for s in drawn), key=lambda end: end[0])
    heights: list[float] = []
    for y, _ in ends:
        heights.append(max(y, heights[-1] + gap) if heights else y)
    overflow = max(0.0, heights[-1] - place.bottom)
    for i in range(len(heights) - 1, -1, -1):
        limit = heights[i + 1] - gap if i + 1 < len(heights) else heights[i] - overflow
        heights[i] = min(heights[i], limit)
    parts = []
    for (_, series), y in zip(ends, heights, strict=True):
        name = series.name if len(series.name) <= 18 else series.name[:17] + "…"
        parts.append(
            tag("text", name, x=f"{place.right + 6:.1f}", y=f"{y:.1f}", dy="0.32em", cls=f"name c{series.colour % COLOURS}")
        )
    return parts


def _sentence(chart: Chart, drawn: Sequence[Series]) -> str:
    told = []
    for s in drawn:
        first, last = s.points[0], s.points[-1]
        name = f"{s.name}: " if len(drawn) > 1 else ""
        told.append(
            f"{name}{_value(chart, first.y)} at {chart.x_label} {short(first.x)}, {_value(chart, last.y)} at {short(last.x)}"
        )
    return f"{chart.title}. {'; '.join(told)}. Arrow keys read the values."


def _for_script(chart: Chart, drawn: Sequence[Series], place: _Place) -> dict:
    def figures(p: Point) -> list[float]:
        known = [p.x, p.y] + ([p.low, p.high] if p.low is not None and p.high is not None else [])
        return [float(f"{v:.6g}") for v in known]

    return {
        "share": chart.share,
        "x": [*place.x_range, place.left, place.right],
        "y": [*place.y_range, place.bottom, place.top],
        "label": chart.x_label,
        "series": [{"name": s.name, "colour": s.colour % COLOURS, "points": [figures(p) for p in s.points]} for s in drawn],
    }


def _value(chart: Chart, value: float, axis: bool = False) -> str:
    if not chart.share:
        return short(value)
    return percent(value, 0 if axis and abs(100 * value - round(100 * value)) < 1e-6 else 1)


def side_by_side(children: Sequence[Child]) -> Markup:
    """Charts side by side where there is room, one below the other where there is not."""
    return tag("div", *children, cls="charts") if children else escape("")
