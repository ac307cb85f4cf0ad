"""Render a page as one file that fetches nothing. Templates escape all text. Also: number formats for pages."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, TypeGuard, TypeVar

from jinja2 import ChainableUndefined, Environment, PackageLoader
from markupsafe import Markup

import tacit
from tacit.core import progress
from tacit.evaluation import plots
from tacit.evaluation.plots import Arrivals, Point, Series, Spread

DASH = "–"  # shown for a missing number
MINUS = "\N{MINUS SIGN}"


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value can be shown and drawn: finite, and far from overflow."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 1 << 63  # larger ones are objects to numpy
    return isinstance(value, float) and abs(value) < 1e100


def format_number(value: Any, digits: int = 1) -> str:
    return f"{value:,.{digits}f}".replace("-", MINUS) if is_number(value) else DASH


def format_count(value: Any) -> str:
    return format_number(value, 0)


def count_noun(value: Any, one: str) -> str:
    """1 turn, 12,345 turns."""
    return f"{format_count(value)} {one if value == 1 else one + 's'}"


def format_percent(share: Any, digits: int = 1) -> str:
    return f"{format_number(100 * share, digits)}%" if is_number(share) else DASH


def format_points(difference: Any, digits: int = 1) -> str:
    """A difference of shares in percentage points with its sign: +12.5."""
    return ("+" if is_number(difference) and difference > 0 else "") + format_percent(difference, digits).rstrip("%")


def format_interval(low_high: Any) -> str:
    """An interval of shares: [10.0, 25.0]."""
    ends = low_high if isinstance(low_high, list | tuple) and len(low_high) == 2 and all(map(is_number, low_high)) else ()
    return f"[{', '.join(format_percent(end).rstrip('%') for end in ends)}]" if ends else ""


def format_short(value: Any) -> str:
    """Four significant digits, for axes and curves: 0, 0.1235, 12,345, 1.5e-07."""
    if not is_number(value):
        return DASH
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{abs(value):.3g}" if value > 0 else f"{MINUS}{abs(value):.3g}"
    text = format_number(value, max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0)
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_probability(p: Any) -> str:
    return "< 0.001" if is_number(p) and p < 0.001 else format_number(p, 3)


def format_duration(seconds: Any) -> str:
    return progress.format_duration(seconds) if is_number(seconds) else DASH


CONTROL = [code for code in range(32) if chr(code) not in "\t\n\r"]
INVISIBLE = dict.fromkeys([*CONTROL, *range(0xD800, 0xE000)], "\N{REPLACEMENT CHARACTER}")
"""control characters and lone surrogates, which HTML or the file's encoding cannot represent"""
FUNCTIONS = (
    format_count, count_noun, format_duration, format_interval, is_number, format_percent, format_number, format_points,
    format_probability, format_short, zip,
)  # fmt: skip


def replace_invisible(value: Any) -> Any:
    """Replace control characters in text; None becomes an empty string; other values are unchanged."""
    return value.translate(INVISIBLE) if isinstance(value, str) else "" if value is None else value


# ChainableUndefined: run files may lack anything, and missing values render as nothing.
environment = Environment(
    loader=PackageLoader("tacit.report"), autoescape=True, undefined=ChainableUndefined, finalize=replace_invisible,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
environment.globals |= {function.__name__: function for function in FUNCTIONS}
parts: Any = environment.get_template("parts.html").module  # macros: `parts.figure(…)` returns markup


@dataclass(frozen=True)
class Live:
    """What a live page needs to reload itself when its run changes."""

    script: str  # runs before the page's own script
    stamp: str  # changes when there is something new
    written: float | None  # time of the last change, in seconds since 1970
    hint: str = ""  # what to do when nothing changes any more


def render(kind: str, notices: Sequence[str], live: Live | None = None, **values: Any) -> str:
    """Render the template `kind`.html with `values`. Repeated notices are shown once."""
    style, script = (files("tacit.report").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    script = f"{live.script}\n{script}" if live else script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    common = {"kind": kind, "version": tacit.__version__, "style": style, "script": script, "digest": digest}
    values |= {"live": live, "links": []}
    page = environment.get_template(f"{kind}.html").render(notices=list(dict.fromkeys(notices)), **common, **values)
    return page.encode("utf-8", "replace").decode()  # names of files and JSON may contain lone surrogates


# Charts as inline SVG, drawn by matplotlib. They work without JavaScript; the script adds the values at the pointer.
#
# A chart is 360 units wide, the width of a narrow phone. Its colors are CSS variables, so that page.css can set them for light
# and dark mode.

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
            plots.label_line_ends(axes, drawn, 12 / (HEIGHT - BOTTOM - TOP))

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
    values = [v for s in drawn for line in (s.points, *s.thin) for p in line for v in (p.y, p.low, p.high) if v is not None]
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
    name = replace_invisible(line.name)
    return replace(line, name=name if len(name) <= 18 else f"{name[:17]}…")
