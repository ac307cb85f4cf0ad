"""Files of experience banks: JSON lines (export and import), opening a bank by run or path, and filling a bank before training.

    {"id": 7, "text": "…", "origin": {"world": "…", "task": "…", …}, "retrieved": 12, "wins": 5, "losses": 1, "trained": 2}

Vectors are not exported: import embeds the texts again, so a bank can move to another embedder. Ids, counts and extractor calls
belong to the bank they were made in: imported entries guide, but the extractor is not trained on them.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from tacit.companions.experience.bank import Bank, Entry, Origin, Usage, connect_read_only, validate_text
from tacit.companions.experience.retrieval import Embedding
from tacit.core.errors import TacitError
from tacit.core.progress import is_unicode
from tacit.core.types import Observation
from tacit.core.world import Environment
from tacit.rollout.replay import build_trajectory, play_episode

IMPORT_BATCH = 256  # entries per embedding call and transaction
KEPT_FIELDS = {"world": str, "family": str, "task": str, "episode": int, "success": bool, "step": int}
"""fields of an origin that survive an import"""


def entry_record(entry: Entry, usage: Usage) -> dict[str, Any]:
    counts = {"retrieved": usage.retrieved, "wins": usage.wins, "losses": usage.losses, "trained": usage.trained}
    return {"id": entry.id, "text": entry.text, "origin": asdict(entry.origin), **counts}


def export_lines(bank: Bank) -> Iterator[str]:
    """One JSON line per live entry, oldest first."""
    for entry in list(bank.entries.values()):
        yield json.dumps(entry_record(entry, bank.usage[entry.id]), ensure_ascii=False)


def import_lines(bank: Bank, embedding: Embedding, lines: Iterable[bytes], source: Path) -> None:
    """Add an entry for every line; `source` is named if one cannot be read, and then none is added."""
    origins = dict[str, Origin]()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                origins.setdefault(*parse_line(line))
            except TacitError as error:
                raise TacitError(f"{source}, line {number}: {error} Fix or delete the line.") from error
    _add(bank, embedding, origins)


def _add(bank: Bank, embedding: Embedding, origins: Mapping[str, Origin]) -> None:
    texts = list(origins)
    for first in range(0, len(texts), IMPORT_BATCH):
        batch = texts[first : first + IMPORT_BATCH]
        bank.replace((), [(t, v, origins[t], None) for t, v in zip(batch, embedding(batch), strict=True)], "")


def parse_line(line: bytes) -> tuple[str, Origin]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TacitError("not JSON.") from error
    if not isinstance(document, dict) or not isinstance(document.get("text"), str):
        raise TacitError('not an object with a "text".')
    origin = document.get("origin", {})
    if not isinstance(origin, dict):
        raise TacitError('"origin" is not an object.')
    for name, kind in KEPT_FIELDS.items():
        if name in origin and type(origin[name]) is not kind:
            raise TacitError(f'"{name}" of the origin is {origin[name]!r:.40}, not of type {kind.__name__}.')
        if kind is str and not is_unicode(origin.get(name, "")):
            raise TacitError(f'"{name}" of the origin has half a character (a lone surrogate) in it.')
    fields = {name: origin[name] for name in KEPT_FIELDS if name in origin}
    return validate_text(document["text"]), Origin(**fields, operation="import")


BANK_FILE = Path("experience", "bank.sqlite")  # of a run's bank, in the run directory


def find_bank(place: Path) -> Path:
    """The bank file of a run directory, or the path itself if it is a file."""
    path = place / BANK_FILE if place.is_dir() else place
    if not path.is_file():
        remedy = "Name a run of a method with experience, or a bank's file." if place.is_dir() else "Is the path right?"
        raise TacitError(f"there is no experience bank {path}. {remedy}")
    return path


def read_bank(path: Path) -> Bank:
    """A copy in memory, so that reading never changes a run, even while it trains."""
    bank = Bank(None, *read_bank_info(path), capacity=sys.maxsize)
    try:
        bank.restore_from(path)
    except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error
    bank.path = path
    return bank


def read_bank_info(path: Path) -> tuple[str, int]:
    """(name of the embedder, its dimensions). Does not modify the file, even if it is not a bank."""
    try:
        with closing(connect_read_only(path)) as disk:
            if not disk.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                raise TacitError(f"{path} is not an experience bank but another SQLite database.")
            meta = dict(disk.execute("SELECT key, value FROM meta").fetchall())
        return meta["embedder"], int(meta["dimensions"])
    except (sqlite3.DatabaseError, ValueError, KeyError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> TacitError:
    return TacitError(
        f"the experience bank {path} is damaged ({error}). Every checkpoint of a run has a copy, as "
        "companions/experience/bank.sqlite: move the damaged file and those that start with its name away, then put the copy "
        "in its place or continue with `tacit train --resume RUN`."
    )


def fill_bank(bank: Bank, embedding: Embedding, world: Environment, source: str, episodes: int) -> None:
    """Fill an empty bank before training (Offline Exp., Figure 3a): from `source` (a run, a bank, or JSON lines), or with
    what the world's hindsight rule says about random episodes of training tasks, each text once. A bank with entries stays as
    it is."""
    if len(bank):
        return
    path = Path(source).expanduser()
    if path.suffix == ".jsonl":
        try:
            import_lines(bank, embedding, path.read_bytes().splitlines(), path)
        except OSError as error:
            raise TacitError(f"cannot read the entries {path}: {error.strerror}.") from error
    elif source:
        try:
            import_lines(bank, embedding, (line.encode() for line in export_lines(read_bank(find_bank(path)))), path)
        except sqlite3.DatabaseError as error:
            raise TacitError(f"cannot read the bank {path}: {error}.") from error
    elif world.hindsight is None:
        raise TacitError(f"world {world.name!r} has no hindsight rule to fill a bank with: name a bank (--bank FILE).")
    else:
        live, origins = world.make(), dict[str, Origin]()
        for i, task in enumerate(world.tasks_of("train", episodes, 0)):
            agent = RandomAgent(Random(f"{task.id}/{i}"))
            trajectory = build_trajectory(task, play_episode(live, task, agent, world.max_steps), i)
            if text := world.hindsight(trajectory).episode.strip():
                origins.setdefault(text, Origin(task.world, task.family, task.id, i, trajectory.success, 0, "import"))
        live.close()
        _add(bank, embedding, origins)
    if not len(bank):
        raise TacitError(f"the bank made before training ({source or 'by rule'}) has no entries.")


class RandomAgent:
    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def act(self, observation: Observation) -> str:
        return self._rng.choice(observation.actions) if observation.actions else ""
