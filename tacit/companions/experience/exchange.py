"""Banks as JSON lines: out with all that is known of an entry, in with its text and where it came from.

    {"id": 7, "text": "…", "origin": {"world": "…", "task": "…", …}, "retrieved": 12, "wins": 5, "losses": 1, "trained": 2}

Vectors stay behind: whoever reads the file embeds the texts anew, so a bank can move from one embedding to another. Ids and
counts belong to the bank they were made in, and so do the extractor's calls: what was read from a file guides, and the
extractor is not trained on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

from tacit.companions.experience.bank import Bank, checked
from tacit.companions.experience.embedding import Embedding
from tacit.companions.experience.entries import Origin
from tacit.core.errors import TacitError
from tacit.core.text import is_unicode

TOGETHER = 256
"""entries embedded and written at once"""
KEPT = {"world": str, "family": str, "task": str, "episode": int, "success": bool, "step": int}
"""what an origin keeps when it changes banks"""


@dataclass
class Taken:
    """What came of a file."""

    added: int = 0
    known: int = 0
    """texts that were there already"""
    bad: list[tuple[int, str]] = field(default_factory=list)
    """(line, what is wrong with it)"""


def exported(bank: Bank) -> Iterator[str]:
    """A line for each living entry, oldest first."""
    for entry in list(bank.entries.values()):
        used = bank.usage[entry.id]
        told = {"id": entry.id, "text": entry.text, "origin": asdict(entry.origin)}
        told |= {"retrieved": used.retrieved, "wins": used.wins, "losses": used.losses, "trained": used.trained}
        yield json.dumps(told, ensure_ascii=False)


def take_in(bank: Bank, embedding: Embedding, lines: Iterable[bytes]) -> Taken:
    """Every line that can be read becomes an entry; the others are told by number, and cost nobody else their place."""
    taken, waiting = Taken(), dict[str, Origin]()
    there = {entry.text for entry in bank.entries.values()}

    def write() -> None:
        if waiting:
            vectors = embedding(list(waiting))
            bank.replace((), [(t, v, o, None) for (t, o), v in zip(waiting.items(), vectors, strict=True)], "")
            taken.added += len(waiting)
            waiting.clear()

    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            text, origin = read_line(line)
        except TacitError as error:
            taken.bad.append((number, str(error)))
            continue
        if text in there:
            taken.known += 1
            continue
        there.add(text)
        waiting[text] = origin
        if len(waiting) == TOGETHER:
            write()
    write()
    return taken


def read_line(line: bytes) -> tuple[str, Origin]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TacitError("not JSON.") from error
    if not isinstance(document, dict) or not isinstance(document.get("text"), str):
        raise TacitError('not an object with a "text".')
    told = document.get("origin", {})
    if not isinstance(told, dict):
        raise TacitError('"origin" is no object.')
    for name, kind in KEPT.items():
        if name in told and type(told[name]) is not kind:
            raise TacitError(f'"{name}" of the origin is {told[name]!r:.40}, not of type {kind.__name__}.')
        if kind is str and not is_unicode(told.get(name, "")):
            raise TacitError(f'"{name}" of the origin has half a character (a lone surrogate) in it.')
    return checked(document["text"]), Origin(**{name: told[name] for name in KEPT if name in told}, operation="import")
