"""Notes put into a prompt: delimited, bounded, and unable to close their own delimiter. Their text is data."""

from __future__ import annotations

import re

OPEN, CLOSE = "<note>", "</note>"
_DELIMITERS = re.compile(r"<\s*/?\s*note\s*>", re.IGNORECASE)


def frame(note: str, limit: int = 2000) -> str:
    """`note` between delimiters, cut to `limit` characters; one that says nothing stays empty."""
    text = note.strip()[:limit]
    # Removing one delimiter can join two halves into another, so repeat until none is left (of a text already cut short).
    while _DELIMITERS.search(text):
        text = _DELIMITERS.sub("", text)
    text = text.strip()
    return f"{OPEN}\n{text}\n{CLOSE}" if text else ""
