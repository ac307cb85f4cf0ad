"""Contexts: the task, past turns and current observation (`History`), or a prompt of bounded length (`StateBlock`).

    xₜ = Format(g, oₜ, qₜ, bₜ),   |xₜ| ≤ B                 (constant context, Eqs. 2–3)

g  the task                                   Prompt.task
qₜ the last turn, (oₜ₋₁, aₜ₋₁)                Prompt.history, at most one line
bₜ the tracker's state block                  Prompt.now, before the observation
oₜ the current observation                    Prompt.now

The paper's baselines are `History` with one turn (ReAct-1step) and with all turns (ReAct-full), both with style `tags`. With
`chat`, each turn is a message and an answer in the model's chat template; otherwise the prompt is one text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tacit.core.actions import ActionFormat
from tacit.core.chat import Conversation, Exchange
from tacit.core.errors import TacitError
from tacit.core.method import Context, PromptReader
from tacit.core.types import ActionStyle, Condition, Observation, Prompt, Task, Transition
from tacit.core.world import Tracker, Wording, tell_now
from tacit.prompts.conversation import build_exchange, build_format, frame_note, render_observation, render_request


@dataclass(frozen=True)
class History(Context):
    """Shows the last `turns` turns: 0 none, None the whole episode."""

    wording: Wording = field()
    turns: int | None = 2
    admissible: bool = True
    style: ActionStyle = "tags"
    chat: bool = False
    thinking: bool = False
    block, bound = False, 0  # no state block, no bound

    @property
    def format(self) -> ActionFormat:
        return build_format(self.wording, self.style, self.thinking)

    def begin(self, task: Task, condition: Condition) -> PromptReader:
        return TurnReader(self, task, condition, self.turns)


@dataclass(frozen=True)
class StateBlock(Context):
    """The constant context. `block=False` omits bₜ, `one_step=False` omits qₜ; the tracker's signals are measured anyway."""

    wording: Wording = field()
    tracker: Tracker = field()
    block: bool = True
    one_step: bool = True
    admissible: bool = False
    style: ActionStyle = "bare"
    bound: int = 4000  # B, in characters; a condition's note is not counted, it has its own limit
    chat: bool = False  # the last turn as message and answer, block and observation as the current message
    thinking: bool = False

    @property
    def format(self) -> ActionFormat:
        return build_format(self.wording, self.style, self.thinking)

    def begin(self, task: Task, condition: Condition) -> PromptReader:
        return TurnReader(self, task, condition, int(self.one_step))


class TurnReader(PromptReader):
    """Builds prompts with the last `turns` turns and, with a tracker, the state block."""

    def __init__(self, context: History | StateBlock, task: Task, condition: Condition, turns: int | None) -> None:
        self._context, self._task, self._turns = context, task, turns
        self._statement, self._note = context.wording.task(task), frame_note(condition.note)
        self._past: list[str] = []
        self._exchanges: list[Exchange] = []
        self._observation = Observation("")
        self._state: Any = None

    def read(self, observation: Observation) -> Prompt:
        context, wording, form, number = self._context, self._context.wording, self._context.format, len(self._past) + 1
        if context.tracker is not None and not self._past:
            self._state = context.tracker.start(self._task, observation)
        self._observation = observation
        first = 0 if self._turns is None else max(0, len(self._past) - self._turns)
        past, conversation, alone = tuple(self._past[first:]), None, ""
        if context.chat:
            conversation = Conversation(tuple(self._exchanges[first:]), form.tools, context.thinking)
            now = render_observation(wording, form, number, observation, context.admissible, self._before)
        else:
            now, alone = tell_now(wording, number, observation, context.admissible, bool(past))
        block = self.block = context.tracker.render(self._state) if context.tracker is not None and context.block else ""
        prompt = Prompt(
            task=self._statement,
            history=past,
            now=wording.separator.join(filter(None, (block, now))),
            request=render_request(wording, context.style),
            separator=wording.separator,
            now_alone=wording.separator.join(filter(None, (block, alone))) if alone else "",
            conversation=conversation,
        )
        if context.bound and (size := len(prompt.text)) > context.bound:
            parts = {"task": self._statement, "turn before": "".join(past), "state block": block}
            shares = ", ".join(f"{name} {len(text)}" for name, text in parts.items())
            raise TacitError(
                f"the prompt of turn {number} of task {self._task.id!r} has {size} characters, more than the bound of "
                f"{context.bound} ({shares}, observation {len(observation.text)}). Raise it with --bound if this world's "
                f"observations are long; if the state block grows with the episode, fix `render` of its tracker."
            )
        return prompt.with_notes(task_note=self._note)

    @property
    def _before(self) -> Exchange | None:
        return self._exchanges[-1] if self._exchanges else None

    def record(self, action: str, transition: Transition, raw_text: str | None = None) -> Mapping[str, float]:
        context, number, seen = self._context, len(self._past) + 1, self._observation
        if context.chat:
            exchange = build_exchange(context.wording, context.format, number, seen, action, raw_text, self._before)
            self._exchanges.append(exchange)
        self._past.append(context.wording.turn(number, seen, action))
        if context.tracker is None:
            return {}
        before, self._state = self._state, context.tracker.update(self._state, action, transition)
        return context.tracker.signals(before, self._state)
