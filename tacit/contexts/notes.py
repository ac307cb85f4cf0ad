"""Notes put into a prompt: delimited, bounded, and unable to close their own delimiter. Their text is data."""

from __future__ import annotations

import re

from tacit.core.skills import Lesson
from tacit.core.types import Prompt

OPEN, CLOSE = "<note>", "</note>"
_UNSEEN = r"[\s\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]*"
"""what nobody sees between two letters: spaces, joiners, marks of direction"""
_DELIMITERS = re.compile(_UNSEEN.join(["<", "/?", "n", "o", "t", "e"]) + r"(?!\w)[^<>]*>", re.IGNORECASE)
"""also with attributes, or closed in itself: whoever reads it would take it for one"""


def frame(note: str, limit: int = 2000) -> str:
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
