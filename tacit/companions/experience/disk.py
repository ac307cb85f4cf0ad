"""A bank on disk: SQLite with a write-ahead log. Every entry that ever was, with its origin; who was guided by it, with what
result; when it was trained on. The living have a vector, too, and the call that wrote them: of an entry that has gone the one
goes with it, the other once nobody can be rewarded for it any more. Whoever writes holds the bank's lock."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tacit.companions.experience.entries import Call, Entry, Origin
from tacit.core.errors import TacitError

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS calls (id INTEGER PRIMARY KEY, prompt BLOB, completion BLOB, logprobs BLOB, version INTEGER);
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY, text TEXT NOT NULL, vector BLOB NOT NULL, origin TEXT NOT NULL, call INTEGER REFERENCES calls(id),
    retired TEXT);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, entry INTEGER NOT NULL, kind TEXT NOT NULL, step INTEGER NOT NULL, task TEXT, success INTEGER);
CREATE INDEX IF NOT EXISTS events_of ON events(entry);
CREATE INDEX IF NOT EXISTS written_by ON entries(call);
"""


class Happened(NamedTuple):
    """Something that happened to an entry."""

    entry: int
    kind: str
    """`retrieved`, `guided` (an episode that ended with `success`) or `trained`"""
    step: int
    task: str = ""
    success: bool | None = None


class Disk:
    """`path` None keeps it in memory; one that is only read is left as it is, and needs one."""

    def __init__(self, path: Path | None, only_read: bool = False) -> None:
        self.path = path
        if path is not None and only_read:
            self._base = read_only(path)
            return
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._base = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
            self._base.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _TABLES)
        except sqlite3.DatabaseError as error:
            raise TacitError(f"cannot open the experience bank {path}: {error}.") from error

    def close(self) -> None:
        self._base.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written within is with the system, all of it or nothing, once this is over: it outlives a killed process. The
        disk is not waited for (`synchronous=NORMAL`): a power cut may take the last writes, and leaves the bank before them."""
        try:
            self._base.execute("BEGIN IMMEDIATE")
            yield
            self._base.execute("COMMIT")
        except BaseException as error:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise TacitError(
                    f"cannot write into the experience bank {self.path} ({error}). Where another process writes into it, wait "
                    "until that has ended, or name another bank; where the disk is full, make room."
                ) from error
            raise

    def add(self, text: str, vector_D: np.ndarray, origin: Origin, call: Call | None) -> Entry:
        origin = replace(origin, call=self._add_call(call) if call is not None else origin.call)
        row = (text, vector_D.tobytes(), json.dumps(asdict(origin)), origin.call)
        cursor = self._base.execute("INSERT INTO entries (text, vector, origin, call) VALUES (?, ?, ?, ?)", row)
        return Entry(int(cursor.lastrowid or 0), text, origin)

    def retire(self, entry: int, why: str) -> None:
        self._base.execute("UPDATE entries SET retired = ?, vector = x'' WHERE id = ?", (why or "removed", entry))

    def retired_with_call(self) -> list[int]:
        rows = self._base.execute("SELECT id FROM entries WHERE retired IS NOT NULL AND call IS NOT NULL ORDER BY id")
        return [number for (number,) in rows]

    def drop_call(self, entry: int) -> None:
        """Of one that has gone. A call may have written others: it stays as long as one of them has it."""
        calls = self._base.execute("SELECT call FROM entries WHERE id = ?", (entry,)).fetchall()
        self._base.execute("UPDATE entries SET call = NULL, origin = json_set(origin, '$.call', NULL) WHERE id = ?", (entry,))
        kept = "SELECT 1 FROM entries WHERE entries.call = calls.id"
        self._base.executemany(f"DELETE FROM calls WHERE id = ? AND NOT EXISTS ({kept})", calls)

    def note(self, event: Happened) -> None:
        row = (*event[:4], None if event.success is None else int(event.success))
        self._base.execute("INSERT INTO events (entry, kind, step, task, success) VALUES (?, ?, ?, ?, ?)", row)

    def living(self) -> Iterator[tuple[Entry, np.ndarray]]:
        """Oldest first."""
        rows = self._base.execute("SELECT id, text, vector, origin FROM entries WHERE retired IS NULL ORDER BY id").fetchall()
        for number, text, vector, origin in rows:
            told = json.loads(origin)
            yield (
                Entry(number, text, Origin(**{**told, "made_from": tuple(told["made_from"])})),
                np.frombuffer(vector, np.float32),
            )

    def events(self) -> Iterator[Happened]:
        """In the order in which they happened."""
        rows = self._base.execute("SELECT entry, kind, step, task, success FROM events ORDER BY number")
        for entry, kind, step, task, success in rows:
            yield Happened(entry, kind, step, task, None if success is None else bool(success))

    def trainings(self, entry: int) -> list[int]:
        """The steps in which it was trained on."""
        rows = self._base.execute("SELECT step FROM events WHERE entry = ? AND kind = 'trained' ORDER BY number", (entry,))
        return [step for (step,) in rows]

    def call(self, entry: int) -> Call | None:
        row = self._base.execute(
            "SELECT prompt, completion, logprobs, version FROM calls JOIN entries ON calls.id = entries.call "
            "WHERE entries.id = ?",
            (entry,),
        ).fetchone()
        if row is None:
            return None
        prompt, completion = (np.frombuffer(blob, np.int64) for blob in row[:2])
        return Call(prompt, completion, np.frombuffer(row[2], np.float32), row[3])

    def explain(self, entry: int) -> dict[str, Any]:
        row = self._base.execute("SELECT text, origin, retired FROM entries WHERE id = ?", (entry,)).fetchone()
        if row is None:
            raise TacitError(f"there is no entry {entry} in {self.path or 'the bank'}.")
        events = self._base.execute(
            "SELECT kind, step, task, success FROM events WHERE entry = ? ORDER BY number", (entry,)
        ).fetchall()
        origin = json.loads(row[1])
        before = [self._base.execute("SELECT id, text, retired FROM entries WHERE id = ?", (n,)) for n in origin["made_from"]]
        after = self._base.execute(
            "SELECT entries.id FROM entries, json_each(entries.origin, '$.made_from') AS old WHERE old.value = ?", (entry,)
        )
        return {
            "id": entry,
            "text": row[0],
            "origin": origin,
            "retired": row[2],
            "replaced": [dict(zip(("id", "text", "retired"), found, strict=True)) for rows in before for found in rows],
            "replaced_by": [number for (number,) in after],
            "events": [dict(zip(("kind", "step", "task", "success"), event, strict=True)) for event in events],
        }

    def sign(self, told: Mapping[str, str]) -> None:
        """A new bank says of itself what it is."""
        if not self._meta():
            with self.transaction():  # whoever is killed halfway has made no bank; whoever comes second reads the first one's
                self._base.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", told.items())

    def check(self, wanted: Mapping[str, str]) -> None:
        """Whether it is what it is taken for."""
        found = self._meta()
        for key, value in wanted.items():
            if found.get(key) != value:
                raise TacitError(
                    f"the experience bank {self.path} was made with {key} {found.get(key)!r}, and this is {value!r}: vectors "
                    "of two models cannot be compared. Name another bank, or export it and import it here (tacit bank)."
                )

    def _meta(self) -> dict[str, str]:
        return dict(self._base.execute("SELECT key, value FROM meta").fetchall())

    def clear(self) -> None:
        for table in ("events", "entries", "calls"):
            self._base.execute(f"DELETE FROM {table}")

    def save_to(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        try:
            self._base.execute("VACUUM INTO ?", (str(path),))
        except sqlite3.OperationalError as error:
            raise TacitError(
                f"cannot write the experience bank into {path} ({error}). Is there room, and may one write there?"
            ) from error

    def restore_from(self, copy: Disk) -> None:
        try:
            copy._base.backup(self._base)
        except sqlite3.OperationalError as error:
            raise TacitError(
                f"cannot copy the experience bank {copy.path} to {self.path} ({error}). Is there room, and may one write there?"
            ) from error

    def _add_call(self, call: Call) -> int:
        row = (
            np.asarray(call.prompt, np.int64).tobytes(),
            np.asarray(call.completion, np.int64).tobytes(),
            np.asarray(call.logprobs, np.float32).tobytes(),
            call.version,
        )
        cursor = self._base.execute("INSERT INTO calls (prompt, completion, logprobs, version) VALUES (?, ?, ?, ?)", row)
        return int(cursor.lastrowid or 0)


def read_only(path: Path) -> sqlite3.Connection:
    """Without a trace. Nobody has a bank open that has no write-ahead log beside it: then not even a lock is taken."""
    log = path.with_name(f"{path.name}-wal")
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{'' if log.exists() else '&immutable=1'}", uri=True)
