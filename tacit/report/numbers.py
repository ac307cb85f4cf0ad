"""Numbers as a page writes them; what is none is a dash."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

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
