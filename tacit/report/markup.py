"""HTML by construction: elements nest because calls nest, and text is escaped unless it is `Markup`.

tag("p", "a < b ", tag("b", "bold"), cls="note")    ->    <p class="note">a &lt; b <b>bold</b></p>
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable
from typing import Any

VOID = frozenset({"meta", "br", "input", "link", "hr", "img"})
INVISIBLE = str.maketrans({code: "\N{REPLACEMENT CHARACTER}" for code in range(32) if chr(code) not in "\t\n\r"})
"""control characters have no place in HTML; a terminal's escape sequence in a world's text is shown, not obeyed"""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = Any
"""Markup as it is, a list of children, None for nothing, and anything else as escaped text"""


def escape(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(html.escape(str(value).translate(INVISIBLE), quote=True))


def join(children: Iterable[Child]) -> Markup:
    return Markup("".join(_child(child) for child in children))


def tag(element: str, /, *children: Child, **attributes: Any) -> Markup:
    """An element. `cls` is class, `_` in a name is `-`, True is a bare attribute, None and False leave it out."""
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None and value is not False)
    if element in VOID:
        return Markup(f"<{element}{written}>")
    return Markup(f"<{element}{written}>{join(children)}</{element}>")


def data_block(identifier: str, value: Any) -> Markup:
    """JSON for the page's script. `<`, `>` and `&` are written as escapes, so that no text in it can end the element."""
    text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # JSON writes control characters as escapes already; lone surrogates, which no encoding has, are replaced.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return Markup(f'<script type="application/json" id="{escape(identifier)}">{text}</script>')


def _finite(value: Any) -> Any:
    """JSON has no infinities and no NaN: null."""
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, list | tuple):
        return join(child)
    return escape(child)


def _attribute(key: str, value: Any) -> str:
    name = "class" if key == "cls" else key.strip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(value)}"'
