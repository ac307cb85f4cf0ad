"""Notes put into a prompt: delimited, bounded, and unable to close their own delimiter. Their text is data."""

from __future__ import annotations

import re

from tacit.core.skills import Lesson
from tacit.core.types import Prompt

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


def frame(note: str, limit: int = LONGEST_NOTE) -> str:
    """`note` between delimiters, cut to `limit` characters; one that says nothing stays empty."""
    text = note.strip()[:limit]
    # Removing one delimiter can join two halves into another, so repeat until none is left (of a text already cut short).
    while _DELIMITERS.search(text):
        text = _DELIMITERS.sub("", text)
    text = text.strip()
    return f"{OPEN}\n{text}\n{CLOSE}" if text else ""


def teach(prompt: Prompt, lesson: Lesson) -> Prompt:
    """H: the same prompt with a lesson in it, beside whatever notes it had."""

    def beside(there: str, note: str) -> str:
        return prompt.separator.join(text for text in (there, frame(note)) if text)

    return prompt.with_notes(beside(prompt.task_note, lesson.task), beside(prompt.step_note, lesson.step))
