"""How Countdown is told: `full` to a language model, `terse` to a policy of a million parameters."""

from __future__ import annotations

from tacit.core.types import ActionStyle, Observation, Task
from tacit.environments.countdown.arithmetic import read

RULES = """You are playing Countdown, one operation at a time.
Combine the numbers until exactly one is left and it is the target.
Each turn, do one of these:
op(+, a, b), op(-, a, b), op(*, a, b) or op(/, a, b): replace the numbers a and b of the pool by the result
rollback: undo the last operation
reset: go back to the first numbers
Every result must be a positive whole number.
Once a single number is left that is not the target, only rollback or reset can help."""


class FullWording:
    separator = "\n\n"

    def task(self, task: Task) -> str:
        return f"{RULES}\nYour puzzle: {task.goal}"

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"Turn {number}. {_sentence(observation)} You did: {action}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        text = f"Turn {number}. {_sentence(observation)}"
        if admissible and observation.actions:
            text += f"\nPossible actions: {'; '.join(observation.actions)}"
        return text

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return "Answer with the next action alone."
        return "Think step by step inside <think> </think>, then give one action inside <action> </action>."


class TerseWording:
    """`3 7 25 > 82` and nothing else; `!` marks that the last action was refused."""

    separator = "\n"

    def task(self, task: Task) -> str:
        return ""

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{_short(observation)} : {action}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        text = _short(observation)
        if admissible and observation.actions:
            text += f" [{'; '.join(observation.actions)}]"
        return text

    def request(self, style: ActionStyle) -> str:
        return ""


def _sentence(observation: Observation) -> str:
    shown = read(observation.text)
    refused = f"Your last action was refused: {shown.refused}. " if shown.refused else ""
    return f"{refused}Numbers: {', '.join(map(str, shown.pool))}. Target: {shown.target}."


def _short(observation: Observation) -> str:
    shown = read(observation.text)
    return f"{' '.join(map(str, shown.pool))} > {shown.target}{' !' if shown.refused else ''}"
