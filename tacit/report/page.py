"""The whole page: one file, nothing fetched, no script but its own. Templates say what stands where, and escape all text."""

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

# Numbers as a page writes them; what is none is a dash.

NOTHING = "–"
MINUS = "\N{MINUS SIGN}"


def is_number(value: Any) -> TypeGuard[float]:
    """A number that can be shown and drawn: finite, and not so large that arithmetic with it is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100


def plain(value: Any, digits: int = 1) -> str:
    return f"{value:,.{digits}f}".replace("-", MINUS) if is_number(value) else NOTHING


def count(value: Any) -> str:
    return plain(value, 0)


def counted(value: Any, one: str) -> str:
    """1 turn, 12,345 turns."""
    return f"{count(value)} {one if value == 1 else one + 's'}"


def percent(share: Any, digits: int = 1) -> str:
    return f"{plain(100 * share, digits)}%" if is_number(share) else NOTHING


def points(difference: Any, digits: int = 1) -> str:
    """A difference of shares in percentage points, always with its sign: +12.5."""
    return ("+" if is_number(difference) and difference > 0 else "") + percent(difference, digits).rstrip("%")


def interval(low_high: Any) -> str:
    """[10.0, 25.0], of shares."""
    ends = low_high if isinstance(low_high, list | tuple) and len(low_high) == 2 and all(map(is_number, low_high)) else ()
    return f"[{', '.join(percent(end).rstrip('%') for end in ends)}]" if ends else ""


def short(value: Any) -> str:
    """Four digits that matter, for axes and curves: 0, 0.1235, 12,345, 1.5e-07."""
    if not is_number(value):
        return NOTHING
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{abs(value):.3g}" if value > 0 else f"{MINUS}{abs(value):.3g}"
    text = plain(value, max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0)
    return text.rstrip("0").rstrip(".") if "." in text else text


def probability(p: Any) -> str:
    return "< 0.001" if is_number(p) and p < 0.001 else plain(p, 3)


def duration(seconds: Any) -> str:
    """4 s, 1 min 15 s, 1 h 2 min."""
    if not is_number(seconds):
        return NOTHING
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


CONTROL = [code for code in range(32) if chr(code) not in "\t\n\r"]
INVISIBLE = dict.fromkeys([*CONTROL, *range(0xD800, 0xE000)], "\N{REPLACEMENT CHARACTER}")
"""control characters have no place in HTML, and halves of characters in no file: a terminal's escape sequence in a world's text
is shown, not obeyed"""
FUNCTIONS = (count, counted, duration, interval, is_number, percent, plain, points, probability, short, zip)


def clean(value: Any) -> Any:
    """Text, or markup, that any encoding can write and no terminal obeys; nothing for None; anything else as it is."""
    return value.translate(INVISIBLE) if isinstance(value, str) else "" if value is None else value


# Files may hold anything: what is not there, or is not what it should be, is shown as nothing.
environment = Environment(
    loader=PackageLoader("tacit.report"), autoescape=True, undefined=ChainableUndefined, finalize=clean, trim_blocks=True,
    lstrip_blocks=True,
)  # fmt: skip
environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
environment.globals |= {function.__name__: function for function in FUNCTIONS}
parts: Any = environment.get_template("parts.html").module
"""the macros: `parts.figure(…)` is markup"""


@dataclass(frozen=True)
class Live:
    """What makes a page follow what it shows: it asks its own server, and nobody else."""

    script: str
    """stands before the page's own"""
    stamp: str
    """changes when there is something new"""
    written: float | None
    """when there last was, in seconds since 1970"""
    hint: str = ""
    """what to do where nothing is written any more"""


def render(kind: str, notices: Sequence[str], live: Live | None = None, **told: Any) -> str:
    """The page of a run or a comparison, from what its template is told; a notice that was given twice is said once."""
    style, script = (files("tacit.report").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    script = f"{live.script}\n{script}" if live else script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    common = {"kind": kind, "version": tacit.__version__, "style": style, "script": script, "digest": digest}
    told |= {"live": live, "links": []}
    return environment.get_template(f"{kind}.html").render(notices=list(dict.fromkeys(notices)), **common, **told)
