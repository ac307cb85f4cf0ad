"""What contexts share that tell an episode as a conversation: each past turn is an exchange, and the present one a message."""

from __future__ import annotations

import re

from tacit.core.actions import ActionFormat, AfterThought, answer_message, get_tools
from tacit.core.chat import Conversation, Exchange, Message, split_thought
from tacit.core.hindsight import Lesson
from tacit.core.types import ActionStyle, Observation, Prompt
from tacit.core.world import Wording, format_of


def build_format(wording: Wording, style: ActionStyle, thinking: bool) -> ActionFormat:
    """The format of an answer, with room for a thought where the model's own is asked for; tags have a thought of theirs."""
    own = format_of(wording, style)
    return AfterThought(own) if thinking and not own.thinks else own


def render_request(wording: Wording, style: ActionStyle) -> str:
    return wording.tool_request if style == "tools" else wording.request(style)


def render_observation(
    wording: Wording, form: ActionFormat, number: int, observation: Observation, admissible: bool, before: Exchange | None
) -> str:
    """What is seen, as a message of its own, below what is to be said of the answer in the exchange before it."""
    seen, tools = wording.message(number, observation, admissible), get_tools(form)
    if before is None or not tools or before.answer.call is not None:
        return seen
    # The world, which heard words it does not know, cannot say what was wrong with them.
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
    """A past turn; the actions that were admissible then are not said again. `wrote`: what was said instead of an action, which
    is told as it was: a model that reads its words turned into a call would copy a call that it never made."""
    said = answer_message(form, action, past=True) if wrote is None else Message("assistant", split_thought(wrote)[1].strip())
    return Exchange(render_observation(wording, form, number, observation, False, before), said)


def conversation(form: ActionFormat, past: tuple[Exchange, ...], thinking: bool) -> Conversation:
    return Conversation(past, get_tools(form), thinking)


# Notes put into a prompt: delimited, bounded, and unable to close their own delimiter. Their text is data.

OPEN, CLOSE = "<note>", "</note>"
LONGEST_NOTE = 2000
"""characters"""
_FILLERS = "\\u115f\\u1160\\u17b4\\u17b5\\u3164\\uffa0"
"""letters that nobody sees"""
_BETWEEN = rf"(?:[^\w<>/\uff1c\uff1e\uff0f]|[{_FILLERS}])*"
"""what is no letter may stand between two letters, most of it unseen: spaces, joiners, marks of direction, accents"""
_DELIMITERS = re.compile(
    _BETWEEN.join(["[<\uff1c]", rf"(?:[/\uff0f]{_BETWEEN})?n", "o", "t", "e"])
    + rf"(?![^\W{_FILLERS}])[^<>\uff1c\uff1e]*[>\uff1e]",
    re.IGNORECASE,
)
"""also with attributes, closed in itself, or as wide as a Chinese character: whoever reads it would take it for one"""


def frame_note(note: str, limit: int = LONGEST_NOTE) -> str:
    """`note` between delimiters, cut to `limit` characters; one that says nothing stays empty."""
    text = note.strip()[:limit]
    # Removing one delimiter can join two halves into another, so repeat until none is left (of a text already cut short).
    while _DELIMITERS.search(text):
        text = _DELIMITERS.sub("", text)
    text = text.strip()
    return f"{OPEN}\n{text}\n{CLOSE}" if text else ""


def insert_lesson(prompt: Prompt, lesson: Lesson) -> Prompt:
    """H: the same prompt with a lesson in it, beside whatever notes it had."""

    def beside(there: str, note: str) -> str:
        return prompt.separator.join(text for text in (there, frame_note(note)) if text)

    return prompt.with_notes(beside(prompt.task_note, lesson.task), beside(prompt.step_note, lesson.step))
