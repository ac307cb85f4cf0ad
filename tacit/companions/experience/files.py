"""Banks as JSON lines: out with all that is known of an entry, in with its text and where it came from.

    {"id": 7, "text": "…", "origin": {"world": "…", "task": "…", …}, "retrieved": 12, "wins": 5, "losses": 1, "trained": 2}

Vectors stay behind: whoever reads the file embeds the texts anew, so a bank can move from one embedding to another. Ids and
counts belong to the bank they were made in, and so do the extractor's calls: what was read from a file guides, and the
extractor is not trained on it.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from tacit.companions.experience.bank import Bank, Origin, connect_read_only, validate_text
from tacit.companions.experience.retrieval import Embedding, NgramEmbedding, SentenceEmbedding
from tacit.core.errors import TacitError
from tacit.core.progress import is_unicode
from tacit.core.resources import Encode
from tacit.core.types import Observation
from tacit.core.world import Environment
from tacit.rollout.replay import build_trajectory, play_episode

IMPORT_BATCH = 256
"""entries embedded and written at once"""
KEPT = {"world": str, "family": str, "task": str, "episode": int, "success": bool, "step": int}
"""what an origin keeps when it changes banks"""


@dataclass
class ImportResult:
    """What came of a file."""

    added: int = 0
    known: int = 0
    """texts that were there already"""
    bad: list[tuple[int, str]] = field(default_factory=list)
    """(line, what is wrong with it)"""


def export_lines(bank: Bank) -> Iterator[str]:
    """A line for each living entry, oldest first."""
    for entry in list(bank.entries.values()):
        used = bank.usage[entry.id]
        told = {"id": entry.id, "text": entry.text, "origin": asdict(entry.origin)}
        told |= {"retrieved": used.retrieved, "wins": used.wins, "losses": used.losses, "trained": used.trained}
        yield json.dumps(told, ensure_ascii=False)


def import_lines(bank: Bank, embedding: Embedding, lines: Iterable[bytes]) -> ImportResult:
    """Every line that can be read becomes an entry; the others are told by number, and cost nobody else their place."""
    taken, waiting = ImportResult(), dict[str, Origin]()
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
        if len(waiting) == IMPORT_BATCH:
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
    return validate_text(document["text"]), Origin(**{name: told[name] for name in KEPT if name in told}, operation="import")


# A bank found by its run or its file, and opened as what it says it is.

BANK_FILE = Path("experience", "bank.sqlite")
"""where a run keeps its bank"""


def find_bank(place: Path) -> Path:
    """The bank of a run directory, or the file itself."""
    path = place / BANK_FILE if place.is_dir() else place
    if not path.is_file():
        remedy = "Name a run of a method with experience, or a bank's file." if place.is_dir() else "Is the path right?"
        raise TacitError(f"there is no experience bank {path}. {remedy}")
    return path


def open_bank(path: Path) -> Bank:
    """With the embedding it was made with, and without a limit: letting the oldest go is for the run that uses it."""
    embedder, dimensions = read_embedding_info(path)
    try:
        return Bank(path, embedder, dimensions, capacity=sys.maxsize)
    except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def read_bank(path: Path) -> Bank:
    """As it is now, in memory: reading a run changes nothing in it, even while it trains."""
    bank = Bank(None, *read_embedding_info(path), capacity=sys.maxsize)
    try:
        bank.restore_from(path)
    except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error
    bank.path = path
    return bank


def read_embedding_info(path: Path) -> tuple[str, int]:
    """(name of the embedding, its dimensions). Read without writing: a file that is no bank stays what it is."""
    try:
        disk = connect_read_only(path)
        try:
            if not disk.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                raise TacitError(f"{path} is no experience bank: a database, but of something else.")
            found = dict(disk.execute("SELECT key, value FROM meta").fetchall())
        finally:
            disk.close()
        return found["embedder"], int(found["dimensions"])
    except (sqlite3.DatabaseError, ValueError, KeyError) as error:
        raise _damaged(path, error) from error


def load_embedding(name: str, dimensions: int, sentences: Callable[[str], Encode]) -> Embedding:
    """What a bank was made with, by the name it keeps; `sentences` loads an encoder."""
    if ngrams := re.fullmatch(r"(\d+)-grams", name):
        return NgramEmbedding(int(ngrams[1]), dimensions)
    return SentenceEmbedding(name, sentences(name))


def _damaged(path: Path, error: Exception) -> TacitError:
    return TacitError(
        f"the experience bank {path} is damaged ({error}). Every checkpoint of a run has a copy, as "
        "companions/experience/bank.sqlite: move the damaged file and what begins with its name away, then put the copy in its "
        "place or go on with `tacit train --resume RUN`."
    )


# A bank that is made before anybody trains and then stays as it is (Offline Exp. of Figure 3a).
#
# From a file: a run, a bank, or JSON lines. Or by rule: somebody acts at random, and the world's own hindsight says what each
# episode teaches: an outsider's experience, as the paper's larger model wrote it down for its smaller ones.


def fill_bank(bank: Bank, embedding: Embedding, world: Environment, source: str, episodes: int) -> None:
    """Into an empty bank; one that was filled before stays as it is."""
    if len(bank):
        return
    if source:
        fill_from_file(bank, embedding, Path(source).expanduser())
    else:
        fill_by_rule(bank, embedding, world, episodes)
    if not len(bank):
        raise TacitError(f"the bank made beforehand ({source or 'by rule'}) has no entries: nobody would be guided.")


def fill_from_file(bank: Bank, embedding: Embedding, source: Path) -> None:
    if source.suffix == ".jsonl":
        try:
            lines = source.read_bytes().splitlines()
        except OSError as error:
            raise TacitError(f"cannot read the entries {source}: {error.strerror}.") from error
        taken = import_lines(bank, embedding, lines)
        if taken.bad:
            line, why = taken.bad[0]
            raise TacitError(f"{source}, line {line}: {why} Mend it, or `tacit bank import` what can be read.")
        return
    try:
        import_lines(bank, embedding, (line.encode() for line in export_lines(read_bank(find_bank(source)))))
    except sqlite3.DatabaseError as error:
        raise TacitError(f"cannot read the bank {source}: {error}.") from error


def fill_by_rule(bank: Bank, embedding: Embedding, world: Environment, episodes: int, seed: int = 0) -> None:
    """What so many random episodes of training tasks teach, each text once."""
    if world.hindsight is None:
        raise TacitError(f"world {world.name!r} has no hindsight to make a bank by: name one (--bank FILE).")
    live, found = world.make(), dict[str, Origin]()
    for i, task in enumerate(world.tasks_of("train", episodes, seed)):
        trajectory = build_trajectory(task, play_episode(live, task, RandomAgent(Random(f"{task.id}/{i}")), world.max_steps), i)
        if text := world.hindsight(trajectory).episode.strip():
            found.setdefault(text, Origin(task.world, task.family, task.id, i, trajectory.success, 0, "import"))
    live.close()
    vectors = embedding(list(found)) if found else ()
    bank.replace((), [(t, v, o, None) for (t, o), v in zip(found.items(), vectors, strict=True)], "")


class RandomAgent:
    """Does anything that is possible."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def act(self, observation: Observation) -> str:
        return self._rng.choice(observation.actions) if observation.actions else ""
