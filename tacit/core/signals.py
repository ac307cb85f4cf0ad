"""A tracker's signals: what a step was worth in two sums, and beside them what each rule gave to it.

    {"progress": 1.02, "error": 0.2, "progress.subgoal": 1.0, "progress.hinted_place": 0.02, "error.repeated": 0.2}

Both sums are always there; a rule only where it came up, since signals are measured at every step of every episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

PROGRESS, ERROR = "progress", "error"


def summed(progress: Mapping[str, float], errors: Mapping[str, float]) -> dict[str, float]:
    """The signals of one step, from what each rule gave; rules that gave nothing are left out. Errors are positive amounts."""
    signals = {PROGRESS: float(sum(progress.values())), ERROR: float(sum(errors.values()))}
    for name, worth in progress.items():
        if worth:
            signals[f"{PROGRESS}.{name}"] = float(worth)
    for name, worth in errors.items():
        if worth:
            signals[f"{ERROR}.{name}"] = float(worth)
    return signals


def counted(events: Iterable[str], table: Mapping[str, float]) -> dict[str, float]:
    """What each event was worth, those that happened twice counted twice."""
    worth: dict[str, float] = {}
    for event in events:
        worth[event] = worth.get(event, 0.0) + table[event]
    return worth


def component_names(progress: Iterable[str], errors: Iterable[str]) -> tuple[str, ...]:
    """The names of all rules, as `summed` spells them."""
    return (*(f"{PROGRESS}.{name}" for name in progress), *(f"{ERROR}.{name}" for name in errors))
