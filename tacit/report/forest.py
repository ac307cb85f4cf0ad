"""Means with their intervals, one line per method: what overlaps is seen at once. Seeds are the small marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.report.charts import COLOURS, LETTER, WIDTH, ticks_between
from tacit.report.markup import Markup, tag
from tacit.report.numbers import percent

ROW, TOP, BOTTOM = 24, 4, 30


@dataclass(frozen=True)
class Row:
    name: str
    mean: float
    low: float
    high: float
    seeds: Sequence[float]
    colour: int


def forest(title: str, rows: Sequence[Row], note: str) -> Markup | None:
    """Shares between 0 and 1; the scale begins at 0 and ends beyond the highest interval."""
    if not rows:
        return None
    left = min(120.0, 10 + LETTER * max(len(row.name) for row in rows))
    right = WIDTH - 14
    highest = max(max(row.high, *row.seeds) if row.seeds else row.high for row in rows) or 1.0
    ticks = ticks_between(0.0, highest)
    if ticks[-1] < highest:
        ticks.append(ticks[-1] + (ticks[1] - ticks[0] if len(ticks) > 1 else highest))
    top = min(1.0, ticks[-1]) if highest <= 1 else ticks[-1]
    ticks = [tick for tick in ticks if tick <= top + 1e-9]

    def x(value: float) -> str:
        return f"{left + min(value, top) / top * (right - left):.1f}"

    bottom = TOP + ROW * len(rows)
    parts = []
    for tick in ticks:
        digits = 0 if abs(100 * tick - round(100 * tick)) < 1e-6 else 1
        parts.append(tag("line", x1=x(tick), x2=x(tick), y1=TOP, y2=bottom, cls="grid"))
        parts.append(tag("text", percent(tick, digits), x=x(tick), y=bottom + 14, cls="tick x"))
    for i, row in enumerate(rows):
        y = TOP + ROW * (i + 0.5)
        colour = f"c{row.colour % COLOURS}"
        parts.append(tag("text", shortened(row.name), x=left - 8, y=y, dy="0.32em", cls=f"name end {colour}"))
        parts.append(tag("line", x1=x(row.low), x2=x(row.high), y1=y, y2=y, cls=f"whisker {colour}"))
        parts += [tag("line", x1=x(s), x2=x(s), y1=y - 5, y2=y + 5, cls=f"seed {colour}") for s in row.seeds]
        told = f"{row.name}: {percent(row.mean)} [{percent(row.low)}, {percent(row.high)}]"
        parts.append(tag("circle", tag("title", told), cx=x(row.mean), cy=y, r="4", cls=f"dot {colour}"))
    sentence = "; ".join(f"{r.name} {percent(r.mean)}, interval {percent(r.low)} to {percent(r.high)}" for r in rows)
    picture = tag("svg", parts, viewBox=f"0 0 {WIDTH} {bottom + BOTTOM - 8}", role="img", aria_label=f"{title}. {sentence}.")
    return tag("figure", tag("figcaption", tag("b", title)), picture, tag("p", note, cls="quiet"), cls="chart")


def shortened(name: str) -> str:
    return name if len(name) <= 18 else name[:17] + "…"
