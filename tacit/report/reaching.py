"""When each seed got to a success rate: one dot per seed, those that never did apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.report.charts import COLOURS, LETTER, WIDTH, ticks_between
from tacit.report.forest import BOTTOM, TOP, shortened
from tacit.report.markup import Markup, tag
from tacit.report.numbers import short

ROW, RADIUS, NEVER = 34, 3, 44


@dataclass(frozen=True)
class Seeds:
    """The first measured iteration of each seed of a method at or above the rate; None where there was none."""

    name: str
    steps: Sequence[float | None]
    colour: int


def reaching(title: str, rows: Sequence[Seeds], last: float) -> Markup:
    """`last` is the last iteration that was measured."""
    left = min(120.0, 10 + LETTER * max(len(row.name) for row in rows))
    right, never = WIDTH - 14 - NEVER, WIDTH - 14 - NEVER / 2
    bottom, end = TOP + ROW * len(rows), last or 1.0

    def x(step: float | None) -> str:
        return f"{never if step is None else left + step / end * (right - left):.1f}"

    parts = [tag("text", "never", x=x(None), y=bottom + 14, cls="tick x")]
    for tick in ticks_between(0.0, end):
        parts.append(tag("line", x1=x(tick), x2=x(tick), y1=TOP, y2=bottom, cls="grid"))
        parts.append(tag("text", short(tick), x=x(tick), y=bottom + 14, cls="tick x"))
    for i, row in enumerate(rows):
        y, colour = TOP + ROW * (i + 0.5), f"c{row.colour % COLOURS}"
        parts.append(tag("text", shortened(row.name), x=left - 8, y=y, dy="0.32em", cls=f"name end {colour}"))
        apart = min(2.2 * RADIUS, (ROW - 3.5 * RADIUS) / max(1, len(row.steps) - 1))
        for number, step in enumerate(row.steps):
            at = f"{y + (number - (len(row.steps) - 1) / 2) * apart:.1f}"
            parts.append(tag("circle", cx=x(step), cy=at, r=RADIUS, cls=f"{'ring' if step is None else 'dot'} {colour}"))
    told = "; ".join(f"{r.name} {', '.join('never' if s is None else short(s) for s in r.steps)}" for r in rows)
    picture = tag("svg", parts, viewBox=f"0 0 {WIDTH} {bottom + BOTTOM - 8}", role="img", aria_label=f"{title}. {told}.")
    return tag("figure", tag("figcaption", tag("b", title)), picture, cls="chart")
