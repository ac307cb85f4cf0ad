"""Amounts and moments as a person says them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def number_of(count: int, one: str, many: str = "") -> str:
    """
    >>> number_of(1, "episode"), number_of(2, "episode"), number_of(0, "family", "families"), number_of(12345, "turn")
    ('1 episode', '2 episodes', '0 families', '12345 turns')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """
    >>> duration(4.2), duration(59.7), duration(75), duration(7500)
    ('4.2 s', '1 min 00 s', '1 min 15 s', '2 h 05 min')
    """
    if round(seconds) < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def after(evaluation: Mapping[str, Any]) -> str:
    """When in a run it was: `untrained`, `after sft 200`, `after rl 20`."""
    stage, step = evaluation["stage"], evaluation["step"]
    return stage if stage == "untrained" else f"after {stage} {step}"
