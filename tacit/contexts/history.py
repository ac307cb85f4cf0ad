"""The agent reads the task, the last k turns, and what it sees now. k = 0 is memoryless, k = None the whole episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.contexts.notes import frame
from tacit.core.actions import ActionFormat
from tacit.core.method import Reader
from tacit.core.types import ActionStyle, Condition, Observation, Prompt, Task, Transition
from tacit.core.wording import Wording, format_of, tell_now


@dataclass(frozen=True)
class History:
    wording: Wording
    turns: int | None = 2
    admissible: bool = True
    style: ActionStyle = "tags"

    @property
    def format(self) -> ActionFormat:
        return format_of(self.wording, self.style)

    def begin(self, task: Task, condition: Condition) -> Reader:
        return _HistoryReader(self, task, condition)


class _HistoryReader:
    def __init__(self, context: History, task: Task, condition: Condition) -> None:
        self._context = context
        self._task = context.wording.task(task)
        self._note = frame(condition.note)
        self._past: list[str] = []
        self._observation = Observation("")

    def read(self, observation: Observation) -> Prompt:
        self._observation = observation
        context, wording, number = self._context, self._context.wording, len(self._past) + 1
        first = 0 if context.turns is None else max(0, len(self._past) - context.turns)
        past = tuple(self._past[first:])
        now, alone = tell_now(wording, number, observation, context.admissible, bool(past))
        return Prompt(
            task=self._task,
            task_note=self._note,
            history=past,
            now=now,
            request=wording.request(context.style),
            separator=wording.separator,
            now_alone=alone,
        )

    def record(self, action: str, transition: Transition) -> Mapping[str, float]:
        self._past.append(self._context.wording.turn(len(self._past) + 1, self._observation, action))
        return {}
