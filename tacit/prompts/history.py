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

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

from tacit.core.actions import ActionFormat, AfterThought
from tacit.core.bounds import AtLeastOne, Basic, Bound
from tacit.core.chat import Conversation, Exchange, Message, split_thought
from tacit.core.errors import TacitError
from tacit.core.hindsight import Lesson
from tacit.core.method import Base, Context, PromptReader
from tacit.core.types import ActionStyle, Condition, Observation, Prompt, Task, Transition
from tacit.core.world import FULL_BLOCK, Environment, Tracker, Wording, format_of, render_now


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
            now, alone = render_now(wording, number, observation, context.admissible, bool(past))
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


# Shared by the contexts: chat prompts (each past turn is an exchange, the current one a message) and notes in prompts.


def build_format(wording: Wording, style: ActionStyle, thinking: bool) -> ActionFormat:
    """Action format of a style; with `thinking`, preceded by the model's own reasoning, unless the format has a thought."""
    own = format_of(wording, style)
    return AfterThought(own) if thinking and not own.thinks else own


def render_request(wording: Wording, style: ActionStyle) -> str:
    return wording.tool_request if style == "tools" else wording.request(style)


def render_observation(
    wording: Wording, form: ActionFormat, number: int, observation: Observation, admissible: bool, before: Exchange | None
) -> str:
    """The observation as a message. If the last answer called no known tool, the message begins with a line that says so."""
    seen, tools = wording.message(number, observation, admissible), form.tools
    if before is None or not tools or before.answer.call is not None:
        return seen
    # The world only sees an unknown action, so it cannot explain the failed tool call.
    named = " or ".join(f"{tool.name} with {tool.argument}" for tool in tools)
    return f"Your last answer called no tool that you have. Call {named}.\n{seen}"


def build_exchange(
    wording: Wording,
    form: ActionFormat,
    number: int,
    observation: Observation,
    action: str,
    wrote: str | None,
    before: Exchange | None,
) -> Exchange:
    """A past turn. `wrote`: an answer that was not a valid action, shown verbatim instead of as a call it did not make."""
    reply = form.message(action, past=True) if wrote is None else Message("assistant", split_thought(wrote)[1].strip())
    return Exchange(render_observation(wording, form, number, observation, False, before), reply)


# Notes in a prompt are data: delimited, of bounded length, and unable to close their own delimiter.

OPEN, CLOSE = "<note>", "</note>"
LONGEST_NOTE = 8000  # characters; pages of SDAR's released skill files have up to 6,000
_FILLERS = "\\u115f\\u1160\\u17b4\\u17b5\\u3164\\uffa0"  # invisible letters
_BETWEEN = rf"(?:[^\w<>/\uff1c\uff1e\uff0f]|[{_FILLERS}])*"  # non-letters between two letters
_DELIMITERS = re.compile(
    _BETWEEN.join(["[<\uff1c]", rf"(?:[/\uff0f]{_BETWEEN})?n", "o", "t", "e"])
    + rf"(?![^\W{_FILLERS}])[^<>\uff1c\uff1e]*[>\uff1e]",
    re.IGNORECASE,
)
"""the delimiters and look-alikes: with attributes, self-closing, or full-width"""


def frame_note(note: str, limit: int = LONGEST_NOTE) -> str:
    """`note` between delimiters, cut to `limit` characters; empty if the note is."""
    text = note.strip()[:limit]
    # Removing one delimiter can join two halves into another, so repeat until none is left.
    while _DELIMITERS.search(text):
        text = _DELIMITERS.sub("", text)
    text = text.strip()
    return f"{OPEN}\n{text}\n{CLOSE}" if text else ""


USE_THROUGHOUT, USE_NOW = "Follow this advice throughout the episode:", "Follow this advice at this step:"
"""the lines before a lesson for the task and before one for the step, similar to OPID's released code"""


def insert_lesson(prompt: Prompt, lesson: Lesson, instructed: bool = False) -> Prompt:
    """H: the prompt with a lesson added to its notes. `instructed`: put a line before it that says to follow it."""

    def append(existing: str, text: str, instruction: str) -> str:
        note = frame_note(text)
        introduction = instruction if note and instructed else ""
        return prompt.separator.join(part for part in (existing, introduction, note) if part)

    return prompt.with_notes(
        append(prompt.task_note, lesson.task, USE_THROUGHOUT), append(prompt.step_note, lesson.step, USE_NOW)
    )


# The `[prompt]` table of a recipe, and the context it describes.

Turns = Annotated[int, Bound(lambda v: v >= -1, "must be a number of turns, or -1 for all turns")]


@dataclass(frozen=True)
class PromptSettings:
    """A method sets the defaults of its paper: `prompt: PromptSettings = PromptSettings(history=1)`."""

    history: Basic[Turns | None] = None
    """past turns in the prompt; -1 is all; if unset, the world's default: 2, or 4 in searchqa"""
    state_block: bool = False
    """show the tracker's state block and at most one past turn (`history` 1 or 0) instead of a longer history"""
    block: str = FULL_BLOCK
    """form of the state block: full, or another the world has (alfworld: text, no_places, paper; cooking: text, no_places)"""
    bound: AtLeastOne = 4000
    """maximum characters of a prompt with a state block; a longer one stops the run with an error"""
    wording: Basic[str] = "full"
    """wording of prompts: full, for language models, or terse, for tiny policies"""
    style: Basic[ActionStyle] = "tags"
    """how actions are written: tags (<think>…</think><action>…</action>), bare, or tools (calls in the model's template)"""
    chat: bool = False
    """write prompts as conversations in the model's chat template, past turns as messages; always on with tools"""
    thinking: bool = False
    """in conversations: turn on the reasoning of the model's template; it is kept apart from the action"""
    admissible: bool = True
    """list the admissible actions in the prompt, if the world has them"""

    def fit_to_model(self, base: Base, explicit: frozenset[str]) -> tuple[Self, tuple[str, ...]]:
        """(settings for this model, notes on what was changed). `explicit` names the settings that the user gave; they stay.

        A model of a few million parameters cannot read prompts written for language models: it gets the terse wording without
        lists of actions, and bare actions. A model with a chat template gets `chat`.
        """
        if base.chat_template and "chat" not in explicit and not self.chat:
            note = f"{base.model} has a chat template, so chat = true; --no-chat shows the episode as one message"
            return replace(self, chat=True), (note,)
        wanted: dict[str, Any] = {"wording": "terse", "style": "bare", "admissible": False} if base.small else {}
        changes = {name: value for name, value in wanted.items() if name not in explicit and getattr(self, name) != value}
        if not changes:
            return self, ()
        listed = ", ".join(f"{name} = {str(value).lower()}" for name, value in changes.items())
        note = f"{base.model} is too small for the default prompts; unless you set them, {listed}"
        return replace(self, **changes), (note,)

    def build_context(self, world: Environment) -> Context:
        if self.state_block:
            return self.build_constant_context(world)
        turns = self.past_turns(world)
        return History(world.wording(self.wording), turns, self.admissible, self.style, self._uses_chat(), self.thinking)

    def past_turns(self, world: Environment) -> int | None:
        """Number of past turns in the prompt in this world; None is all of them."""
        turns = world.history if self.history is None else self.history
        return None if turns < 0 else turns

    def build_constant_context(self, world: Environment, block: bool = True) -> Context:
        """The current observation, at most one past turn and, with `block`, the tracker's state block."""
        turns = self.past_turns(world)
        if turns not in (0, 1):
            length = -1 if turns is None else turns
            raise TacitError(
                f"history = {length}: a prompt with a state block shows one past turn (1) or none (0). For more, drop the "
                f"state block: `--method grpo --history {length}`."
            )
        options = (self.admissible, self.style, self.bound, self._uses_chat(), self.thinking)
        return StateBlock(world.wording(self.wording), world.tracker_of(self.block), block, turns == 1, *options)

    def _uses_chat(self) -> bool:
        chat = self.chat or self.style == "tools"
        if self.thinking and not chat:
            raise TacitError("thinking = true needs the model's chat template; add --chat.")
        return chat
