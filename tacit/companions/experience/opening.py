"""A bank found by its run or its file, and opened as what it says it is."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

from tacit.companions.experience.bank import Bank
from tacit.companions.experience.disk import read_only
from tacit.companions.experience.embedding import Embedding, Ngrams, Sentences
from tacit.core.errors import TacitError
from tacit.core.tools import Encode

IN_A_RUN = Path("experience", "bank.sqlite")
"""where a run keeps its bank"""


def find_bank(place: Path) -> Path:
    """The bank of a run directory, or the file itself."""
    path = place / IN_A_RUN if place.is_dir() else place
    if not path.is_file():
        remedy = "Name a run of a method with experience, or a bank's file." if place.is_dir() else "Is the path right?"
        raise TacitError(f"there is no experience bank {path}. {remedy}")
    return path


def open_bank(path: Path) -> Bank:
    """With the embedding it was made with, and without a limit: letting the oldest go is for the run that uses it."""
    embedder, dimensions = made_with(path)
    try:
        return Bank(path, embedder, dimensions, capacity=sys.maxsize)
    except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def read_bank(path: Path) -> Bank:
    """As it is now, in memory: reading a run changes nothing in it, even while it trains."""
    bank = Bank(None, *made_with(path), capacity=sys.maxsize)
    try:
        bank.restore_from(path)
    except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error
    bank.path = path
    return bank


def made_with(path: Path) -> tuple[str, int]:
    """(name of the embedding, its dimensions). Read without writing: a file that is no bank stays what it is."""
    try:
        disk = read_only(path)
        try:
            if not disk.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                raise TacitError(f"{path} is no experience bank: a database, but of something else.")
            found = dict(disk.execute("SELECT key, value FROM meta").fetchall())
        finally:
            disk.close()
        return found["embedder"], int(found["dimensions"])
    except (sqlite3.DatabaseError, ValueError, KeyError) as error:
        raise _damaged(path, error) from error


def embedding_named(name: str, dimensions: int, sentences: Callable[[str], Encode]) -> Embedding:
    """What a bank was made with, by the name it keeps; `sentences` loads an encoder."""
    if ngrams := re.fullmatch(r"(\d+)-grams", name):
        return Ngrams(int(ngrams[1]), dimensions)
    return Sentences(name, sentences(name))


def _damaged(path: Path, error: Exception) -> TacitError:
    return TacitError(
        f"the experience bank {path} is damaged ({error}). Every checkpoint of a run has a copy, as "
        "companions/experience/bank.sqlite: move the damaged file and what begins with its name away, then put the copy in its "
        "place or go on with `tacit train --resume RUN`."
    )
