"""The prompt is the task, the last k turns, and the current observation. k = 0 is memoryless, k = None the whole episode.

With `chat`, each turn is a message and its answer in the model's chat template; otherwise the prompt is one text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tacit.core.actions import ActionFormat
from tacit.core.chat import Conversation, Exchange
from tacit.core.method import Context, PromptReader
from tacit.core.types import ActionStyle, Condition, Observation, Prompt, Task, Transition
from tacit.core.world import Wording, tell_now
from tacit.prompts.conversation import build_exchange, build_format, frame_note, render_observation, render_request


@dataclass(frozen=True)
class History(Context):
    wording: Wording = field()
    turns: int | None = 2
    admissible: bool = True
    style: ActionStyle = "tags"
    chat: bool = False
    thinking: bool = False

    @property
    def format(self) -> ActionFormat:
        return build_format(self.wording, self.style, self.thinking)

    def begin(self, task: Task, condition: Condition) -> PromptReader:
        return _HistoryReader(self, task, condition)


class _HistoryReader(PromptReader):
    def __init__(self, context: History, task: Task, condition: Condition) -> None:
        self._context = context
        self._task = context.wording.task(task)
        self._note = frame_note(condition.note)
        self._past: list[str] = []
        self._exchanges: list[Exchange] = []
        self._observation = Observation("")

    def read(self, observation: Observation) -> Prompt:
        self._observation = observation
        context, wording, number = self._context, self._context.wording, len(self._past) + 1
        first = 0 if context.turns is None else max(0, len(self._past) - context.turns)
        past, form, conversation, alone = tuple(self._past[first:]), context.format, None, ""
        if context.chat:
            conversation = Conversation(tuple(self._exchanges[first:]), form.tools, context.thinking)
            now = render_observation(wording, form, number, observation, context.admissible, self._before)
        else:
            now, alone = tell_now(wording, number, observation, context.admissible, bool(past))
        return Prompt(
            task=self._task,
            task_note=self._note,
            history=past,
            now=now,
            request=render_request(wording, context.style) if context.chat else wording.request(context.style),
            separator=wording.separator,
            now_alone=alone,
            conversation=conversation,
        )

    @property
    def _before(self) -> Exchange | None:
        return self._exchanges[-1] if self._exchanges else None

    def record(self, action: str, transition: Transition, raw_text: str | None = None) -> Mapping[str, float]:
        context, number = self._context, len(self._past) + 1
        if context.chat:
            seen, before = self._observation, self._before
            self._exchanges.append(build_exchange(context.wording, context.format, number, seen, action, raw_text, before))
        self._past.append(context.wording.turn(number, self._observation, action))
        return {}
