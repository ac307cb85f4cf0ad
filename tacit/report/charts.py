"""Charts as inline SVG, drawn by matplotlib. They work without JavaScript; the script adds the values at the pointer.

A chart is 360 units wide, the width of a narrow phone. Its colors are CSS variables, so that page.css can set them for light
and dark mode.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from markupsafe import Markup

from tacit.evaluation import plots
from tacit.evaluation.plots import Arrivals, Point, Series, Spread
from tacit.report.page import format_percent, format_short, parts, replace_invisible

Named = TypeVar("Named", Series, Spread, Arrivals)
WIDTH, HEIGHT, TOP, BOTTOM, LEFT = 360, 190, 8, 32, 44
LETTER = 7.2  # mean width of a bold letter
MAX_POINTS = 240  # per line; more are averaged with their neighbors
QUIET, RULE = "#5b6570", "#dfe3e8"
NAMES = {color: f"c{i}" for i, color in enumerate(plots.COLORS)} | {QUIET: "quiet", RULE: "rule"}  # color -> CSS variable
DRESS = plots.PLAIN | {f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")} | {
    "font.size": 11, "xtick.major.size": 0, "ytick.major.size": 0, "xtick.major.pad": 5, "ytick.major.pad": 6,
    "xtick.labelcolor": QUIET, "ytick.labelcolor": QUIET, "axes.labelcolor": QUIET, "axes.axisbelow": True, "grid.color": RULE,
    "grid.linewidth": 1,
}  # fmt: skip
SUPERFLUOUS = re.compile(
    # Groups (their ids repeat in every chart), clip paths, zero rotations, fonts, digits after the second, white space.
    r'</?g(?: [a-z-]+="[^"]*")* ?/?>| clip-path="[^"]*"|<defs>\s*<clipPath.*?</defs>| transform="rotate\(-0 [^"]*"'
    r'|font-(?:size|family): [^;"]*; |(?<=\.\d\d)\d+(?=[^<>]*>)|(?<=>)\s+(?=<)',
    re.DOTALL,
)


def draw_chart(
    title: str,
    series: Sequence[Series],
    x_label: str = "iteration",
    note: str = "",
    share: bool = False,
    floor: float = math.inf,
    marks: bool = False,
) -> Markup:
    """A line chart with title, last value and note. At least one line must have points. `share` shows percentages, and extends
    the axis to 0 or 100 if values are close. The axis includes `floor`. `marks` draws the points, for short lines."""
    show: Callable[[float], str] = format_percent if share else format_short
    merged = max(math.ceil(len(s.points) / MAX_POINTS) for s in series)
    drawn = [replace(_short(s), points=thin_points(s.points)) for s in series if s.points]
    several, x = len(drawn) > 1, [p.x for s in drawn for p in s.points]
    ends, ticks = (min(x), max(max(x), min(x) + 1)), _scale(drawn, share, floor)
    right = WIDTH - 8 - (8 + LETTER * max(len(s.name) for s in drawn) if several else 0)

    def paint(axes: Any) -> None:
        axes.set(xlim=ends, ylim=(ticks[0], ticks[-1]))
        axes.set_yticks(ticks, [show(tick).replace(".0%", "%") for tick in ticks])
        axes.grid(axis="y")
        axes.set_xlabel(x_label, loc="right", labelpad=3)
        axes.locator_params(axis="x", nbins=4)
        plots.draw_lines(axes, drawn, marks)
        if several:
            plots.name_ends(axes, drawn, 12 / (HEIGHT - BOTTOM - TOP))

    lines = []
    for s in drawn:
        points = [[float(f"{v:.6g}") for v in (p.x, p.y, p.low, p.high) if v is not None] for p in s.points]
        lines.append({"name": s.name, "color": s.color % len(plots.COLORS), "points": points})
    scales = {"x": [*ends, LEFT, right], "y": [ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP]}
    ranges = [
        f"{s.name + ': ' if several else ''}{show(s.points[0].y)} at {x_label} {format_short(s.points[0].x)}, "
        f"{show(s.points[-1].y)} at {format_short(s.points[-1].x)}"
        for s in drawn
    ]
    label = f"{title}. {'; '.join(ranges)}. Arrow keys read the values."
    data = {"share": share, "label": x_label, "series": lines, **scales}
    notes = [note, f"each point is the mean of {merged} neighbors" if merged > 1 else ""]
    reading = "" if several else show(drawn[0].points[-1].y)
    return _figure(title, label, (HEIGHT, LEFT, right, BOTTOM), paint, "; ".join(filter(None, notes)), data, reading)


def draw_spreads(title: str, rows: Sequence[Spread], note: str) -> Markup:
    """Shares with intervals, on an axis that starts at 0."""
    drawn = list(map(_short, rows))
    ticks = choose_ticks(0.0, max(max(row.high, *row.seeds, row.mean) for row in rows) or 1.0)

    def paint(axes: Any) -> None:
        axes.set_xticks(ticks, [format_percent(tick).replace(".0%", "%") for tick in ticks])
        axes.set_xlim(0, ticks[-1])
        plots.draw_spreads(axes, drawn)

    values = "; ".join(
        f"{r.name} {format_percent(r.mean)}, interval {format_percent(r.low)} to {format_percent(r.high)}" for r in rows
    )
    return _figure(title, f"{title}. {values}.", _row_margins(drawn, 26, 54), paint, note)


def draw_arrivals(title: str, rows: Sequence[Arrivals], last: float) -> Markup:
    """One dot per run at the iteration where it reached a threshold; `last` is the last measured iteration."""
    drawn = list(map(_short, rows))
    steps = "; ".join(f"{r.name} {', '.join('never' if s is None else format_short(s) for s in r.steps)}" for r in rows)
    margins = _row_margins(drawn, 34, 8)
    return _figure(title, f"{title}. {steps}.", margins, lambda axes: plots.draw_arrivals(axes, drawn, last))


def thin_points(points: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """At most `most` points: means of groups of neighbors, each at the last x of its group."""
    size = math.ceil(len(points) / most)
    if size == 1:
        return list(points)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [Point(group[-1].x, sum(p.y for p in group) / len(group)) for group in groups]


def _figure(title: str, label: str, margins: tuple[float, ...], paint: Callable[[Any], None], *more: Any) -> Markup:
    """Draw into axes with these margins (height, left, right, bottom) and return the figure as markup."""
    import matplotlib
    from matplotlib.figure import Figure

    (height, left, right, below), text = margins, io.StringIO()
    with matplotlib.rc_context(DRESS | {"svg.hashsalt": replace_invisible(label)}):  # deterministic ids
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
        paint(figure.add_axes((left / WIDTH, below / height, (right - left) / WIDTH, 1 - (below + TOP) / height)))
        figure.savefig(text, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    drawing = SUPERFLUOUS.sub("", text.getvalue().partition("</defs>")[2].rpartition("</svg>")[0])
    for color, name in NAMES.items():
        drawing = drawing.replace(color, f"var(--{name})")
    return parts.figure(title, height, label, Markup(drawing), *more)  # matplotlib has escaped the words in it


def _scale(drawn: Sequence[Series], share: bool, floor: float) -> list[float]:
    values = [v for s in drawn for line in (s.points, *s.each) for p in line for v in (p.y, p.low, p.high) if v is not None]
    low, high = min(*values, floor), max(values)
    if share:
        low = 0.0 if 0 <= low < 0.5 else low
        high = 1.0 if 0.75 < high <= 1 else high
    return choose_ticks(low, high)


def choose_ticks(low: float, high: float) -> list[float]:
    """Round tick values that cover `low` to `high`; if they are equal, the range includes 0."""
    from matplotlib.ticker import MaxNLocator

    if high - low < 1e-9 * max(abs(low), abs(high)):
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-30:
        high = low + 1.0
    ticks = list(map(float, MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)))
    near = (ticks[1] - ticks[0]) * (1 - 1e-9)
    return [tick for tick in ticks if low - near < tick < high + near]


def _row_margins(rows: Sequence[Spread | Arrivals], each: int, right: int) -> tuple[float, ...]:
    return TOP + each * len(rows) + 22, 12 + LETTER * max(len(row.name) for row in rows), WIDTH - right, 22


def _short(line: Named) -> Named:
    """The line with its name shortened to 18 characters."""
    name = replace_invisible(line.name)
    return replace(line, name=name if len(name) <= 18 else f"{name[:17]}…")
