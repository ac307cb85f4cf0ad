"""The prompt is the task, the last turn, a state block, and the current observation: bounded, however long the episode.

    xₜ = Format(g, oₜ, qₜ, bₜ),   |xₜ| ≤ B                 (constant context, Eqs. 2–3)

g  the task                                   Prompt.task
qₜ the last turn, (oₜ₋₁, aₜ₋₁)                Prompt.history, at most one line
bₜ the tracker's state block                  Prompt.now, before the observation
oₜ the current observation                    Prompt.now

The paper's baselines are `History` with one turn (ReAct-1step) and with all turns (ReAct-full), both in the style `tags`.
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
class StateBlock(Context):
    """`block=False` and `one_step=False` leave out bₜ and qₜ. The tracker's signals are measured either way."""

    wording: Wording = field()
    tracker: Tracker = field()
    block: bool = True
    one_step: bool = True
    admissible: bool = False
    style: ActionStyle = "bare"
    bound: int = 4000
    """B, in characters, without a condition's note, which has its own bound"""
    chat: bool = False
    """chat messages: the last turn is a message and its answer, block and observation are the current message"""
    thinking: bool = False

    @property
    def format(self) -> ActionFormat:
        return build_format(self.wording, self.style, self.thinking)

    def begin(self, task: Task, condition: Condition) -> PromptReader:
        return _StateBlockReader(self, task, condition)


class _StateBlockReader(PromptReader):
    def __init__(self, context: StateBlock, task: Task, condition: Condition) -> None:
        self._context, self._task = context, task
        self._statement = context.wording.task(task)
        self._note = frame_note(condition.note)
        self._observation = Observation("")
        self._state: Any = None
        self._before = ""
        """the last turn as text"""
        self._exchange: Exchange | None = None
        """the last turn as an exchange"""
        self._turns = 0

    def read(self, observation: Observation) -> Prompt:
        context, wording = self._context, self._context.wording
        if self._turns == 0:
            self._state = context.tracker.start(self._task, observation)
        self._observation = observation
        past = (self._before,) if context.one_step and self._before else ()
        block = self.block = context.tracker.render(self._state) if context.block else ""
        form, number, conversation, alone = context.format, self._turns + 1, None, ""
        if context.chat:
            talked = (self._exchange,) if past and self._exchange else ()
            conversation = Conversation(talked, form.tools, context.thinking)
            now = render_observation(wording, form, number, observation, context.admissible, self._exchange)
        else:
            now, alone = tell_now(wording, number, observation, context.admissible, bool(past))

        def below(told: str) -> str:
            return wording.separator.join(part for part in (block, told) if part)

        prompt = Prompt(
            task=self._statement,
            history=past,
            now=below(now),
            request=render_request(wording, context.style),
            separator=wording.separator,
            now_alone=below(alone) if alone else "",
            conversation=conversation,
        )
        if (size := len(prompt.text)) > context.bound:
            parts = {"task": self._statement, "turn before": "".join(prompt.history), "state block": block}
            shares = ", ".join(f"{name} {len(text)}" for name, text in parts.items())
            raise TacitError(
                f"the prompt of turn {number} of task {self._task.id!r} has {size} characters, more than the bound of "
                f"{context.bound} ({shares}, observation {len(observation.text)}). Raise the bound (--bound) if this world "
                f"says that much in one turn; if the block has grown with the episode, its tracker's `render` is at fault."
            )
        return prompt.with_notes(task_note=self._note)

    def record(self, action: str, transition: Transition, raw_text: str | None = None) -> Mapping[str, float]:
        context = self._context
        self._turns += 1
        if context.chat:
            seen, before = self._observation, self._exchange
            self._exchange = build_exchange(context.wording, context.format, self._turns, seen, action, raw_text, before)
        self._before = context.wording.turn(self._turns, self._observation, action)
        before, self._state = self._state, context.tracker.update(self._state, action, transition)
        return context.tracker.signals(before, self._state)
