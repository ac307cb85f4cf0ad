"""Render a page as one file that fetches nothing. Templates escape all text. Also: number formats for pages."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeGuard

from jinja2 import ChainableUndefined, Environment, PackageLoader

import tacit

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
    """4 s, 1 min 15 s, 1 h 2 min."""
    if not is_number(seconds):
        return DASH
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


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
