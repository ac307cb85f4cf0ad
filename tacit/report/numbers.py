"""Numbers as a page writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

NOTHING = "–"
"""shown where there is no number"""
MINUS = "\N{MINUS SIGN}"


def percent(share: Any, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}%".replace("-", MINUS) if is_number(share) else NOTHING


def interval(low_high: Any) -> str:
    """
    >>> interval((0.1, 0.25))
    '[10.0, 25.0]'
    """
    if not isinstance(low_high, Sequence) or len(low_high) != 2 or not all(map(is_number, low_high)):
        return ""
    low, high = low_high
    return f"[{100 * low:.1f}, {100 * high:.1f}]".replace("-", MINUS)


def plain(value: Any, digits: int = 1) -> str:
    return f"{value:,.{digits}f}".replace("-", MINUS) if is_number(value) else NOTHING


def count(value: Any) -> str:
    """
    >>> count(1234567)
    '1,234,567'
    """
    return f"{round(value):,}" if is_number(value) else NOTHING


def short(value: Any) -> str:
    """Four digits that matter, for axes and curves.

    >>> [short(x) for x in (0.0, 0.123456, 12345.0, 1.5e-7)]
    ['0', '0.1235', '12,345', '1.5e-07']
    """
    if not is_number(value):
        return NOTHING
    if value == 0:
        return "0"
    if abs(value) < 1e-4 or abs(value) >= 1e7:
        return f"{value:.3g}".replace("-", MINUS, 1) if value < 0 else f"{value:.3g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", MINUS)


def probability(p: Any) -> str:
    if not is_number(p):
        return NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def duration(seconds: Any) -> str:
    """
    >>> duration(3725)
    '1 h 2 min'
    """
    if not is_number(seconds):
        return NOTHING
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def is_number(value: Any) -> TypeGuard[float]:
    """A number that can be shown and drawn: finite, and not so large that arithmetic with it is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e100
