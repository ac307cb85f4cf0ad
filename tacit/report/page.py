"""The whole page: one file, nothing fetched, no script but its own. Templates say what stands where, and escape all text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import ChainableUndefined, Environment, PackageLoader

import tacit
from tacit.report.numbers import count, counted, duration, interval, is_number, percent, plain, points, probability, short

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
