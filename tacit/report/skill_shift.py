"""What hindsight's skills did (OPID's Figures 7 and 8), by iteration; and at a turn, what it was told and each token's shift.

Runs of methods without skills have nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup

from tacit.evaluation.pictures import Series
from tacit.report.numbers import is_number
from tacit.report.run_files import Record
from tacit.report.step_credit import FROM_ZERO, Diagnostic, run_charts

CHARTS = (
    Diagnostic("Skill shift per token, magnitude", {"": "skill_shift/magnitude"}, FROM_ZERO),
    Diagnostic("λ · shift per token, magnitude", {"": "skill_shift/credit_magnitude"}, FROM_ZERO),
    Diagnostic("Episode credit per token, magnitude", {"": "episode_credit_magnitude"}, FROM_ZERO),
    Diagnostic("Critical steps per episode", {"": "hindsight/critical_steps"}, FROM_ZERO),
    Diagnostic("Seconds waited for hindsight", {"": "hindsight/seconds_waited"}, FROM_ZERO),
)
FIELDS = ("skills", "shift_by_token")
"""of a recorded turn; `skill_shift`, their sum, is a number like others"""


def skill_charts(found: dict[str, list[Series]], word: str) -> list[Markup]:
    """Of the metrics of a run, which are taken out of `found`; none where it has no skills."""
    return run_charts(found, word, CHARTS) if any(name.startswith("skill_shift/") for name in found) else []


def taught(turn: Record, kept: Callable[[Any], int]) -> dict[str, Any]:
    """The skills of a turn and its tokens with their shifts, for the script; `kept` gives a text its number."""
    lessons, tokens = (turn.get(name) for name in FIELDS)
    told: dict[str, Any] = {}
    if isinstance(lessons, list) and lessons and all(isinstance(lesson, Mapping) and lesson for lesson in lessons):
        told["skills"] = [[str(where), kept(text)] for lesson in lessons for where, text in lesson.items()]
    if isinstance(tokens, list) and tokens and all(map(_is_shift, tokens)):
        told["shift_by_token"] = [[kept(word), shift] for word, shift in tokens]
    return told


def _is_shift(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and is_number(entry[1])
