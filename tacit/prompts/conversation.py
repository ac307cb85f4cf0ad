"""Shared by the contexts: chat prompts (each past turn is an exchange, the current one a message) and notes in prompts."""

from __future__ import annotations

import re

from tacit.core.actions import ActionFormat, AfterThought
from tacit.core.chat import Exchange, Message, split_thought
from tacit.core.hindsight import Lesson
from tacit.core.types import ActionStyle, Observation, Prompt
from tacit.core.world import Wording, format_of


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
