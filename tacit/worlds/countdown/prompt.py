"""Wordings: `full` for language models, `terse` for models of about a million parameters."""

from __future__ import annotations

from tacit.core.types import Observation
from tacit.core.world import Brief, Numbered
from tacit.worlds.countdown.world import parse_observation

RULES = """You are playing Countdown, one operation at a time.
Combine the numbers until exactly one is left and it is the target.
Each turn, do one of these:
op(+, a, b), op(-, a, b), op(*, a, b) or op(/, a, b): replace the numbers a and b of the pool by the result
rollback: undo the last operation
reset: go back to the first numbers
Every result must be a positive whole number.
Once a single number is left that is not the target, only rollback or reset can help."""


class FullWording(Numbered):
    rules, asked, between = RULES, "Your puzzle: ", " "

    def seen(self, observation: Observation) -> str:
        shown = parse_observation(observation.text)
        refused = f"Your last action was refused: {shown.refused}. " if shown.refused else ""
        return f"{refused}Numbers: {', '.join(map(str, shown.pool))}. Target: {shown.target}."


class TerseWording(Brief):
    """`3 7 25 > 82`; `!` means that the last action was refused."""

    then = " : "

    def brief(self, observation: Observation) -> str:
        shown = parse_observation(observation.text)
        return f"{' '.join(map(str, shown.pool))} > {shown.target}{' !' if shown.refused else ''}"
