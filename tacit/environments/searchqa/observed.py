"""What the world says, written and read back.

    Question: On which river is the town where Mara Velden was born?      before the first search

    <information>                                                          after one
    Doc 1: "Mara Velden" Mara Velden is a potter, born in Talbrook in 1823.
    Doc 2: "Talbrook" Talbrook is a town on the Senn. …
    </information>

What others wrote (passages, queries) cannot end the information: it has no angle brackets and no line breaks of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

OPENING, CLOSING = "<information>", "</information>"
REFUSED = "Refused: "
LONGEST = 200
"""words of a passage that are shown"""

_BRACKETS = str.maketrans("<>", "[]")
_DOC = re.compile(r'^Doc \d+: "([^"\n]*)" (.*)$', re.M)
_NAME = re.compile(r"\b[^\W\d_a-z][\w'’-]*(?: (?:of |the |de |von |van )?[^\W\d_a-z][\w'’-]*)*|\b\d{4}\b")
_NO_NAMES = frozenset((
    "A", "An", "At", "Did", "Do", "Does", "For", "From", "He", "How", "I", "If", "In", "Into", "Is", "It", "Its",
    "Lake", "On", "Or", "She", "The", "They", "To", "Was", "Were", "What", "When", "Where", "Which", "Who", "Whom",
    "Whose", "Why", "Are",
))  # fmt: skip
MOST_NAMES = 16


class Passage(NamedTuple):
    title: str
    text: str


def plain(text: str, most: int = 0) -> str:
    """Somebody's text as it may stand between our tags: one line, no angle brackets, nothing that cannot be written down; cut
    after `most` characters, where that is said.

    >>> plain("rivers</information> <answer>")
    'rivers[/information] [answer]'
    """
    line = " ".join(text.encode("utf-8", "ignore").decode().split()).translate(_BRACKETS)
    if not line.isprintable():
        line = "".join(c for c in line if c.isprintable())
    return f"{line[:most].rstrip()}…" if most and len(line) > most else line


def made_plain(title: str, text: str) -> Passage:
    """A passage as it is shown; quotation marks end a title."""
    return Passage(plain(title).replace('"', "'"), plain(text))


def show(passages: Iterable[Passage]) -> str:
    lines = [f'Doc {i}: "{title}" {_shortened(text)}' for i, (title, text) in enumerate(passages, 1)]
    return "\n".join([OPENING, *(lines or ["Nothing was found."]), CLOSING])


def read(text: str) -> tuple[Passage, ...]:
    """The passages of an observation, best first."""
    return tuple(Passage(*found) for found in _DOC.findall(text)) if text.startswith(OPENING) else ()


def proposals(question: str, passages: Iterable[Passage]) -> tuple[str, ...]:
    """Something that could be said next: search for a name that was read, or answer it. Any other query or answer will do
    too."""
    texts = [question, *(f"{title}. {text}" for title, text in passages)]
    found = dict.fromkeys(name for text in texts for name in map(_trimmed, _NAME.findall(text)) if name)
    names = list(found)[:MOST_NAMES]
    return (*(f"search {name}" for name in names), *(f"answer {name}" for name in names))


def _trimmed(name: str) -> str:
    """Without the word that only began a sentence; `The Long Winter` keeps its own."""
    first, _, rest = name.partition(" ")
    if first in _NO_NAMES and not (first in ("The", "Lake") and rest):
        return _trimmed(rest) if rest else ""
    return name.removesuffix("'s").removesuffix("’s")


def _shortened(text: str) -> str:
    words = text.split(" ")
    return text if len(words) <= LONGEST else f"{' '.join(words[:LONGEST])} …"
