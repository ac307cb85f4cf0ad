"""The experience bank: entries with vectors and origins, durable in SQLite, searched in memory (`Snapshot`).

A write returns when it is committed and survives a killed process. Writing threads share a lock; readers never wait and see
each change completely or not at all. One process at a time may write. Others may only remove entries (`remove_by_hand`); the
writer applies the removals before its next search or write.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.progress import is_unicode

MAX_ENTRY_CHARS = 4000  # longer entries are rejected; a prompt shows them whole
CAPACITY = 20_000
FORMAT = "1"
BY_HAND = "removed by hand"  # the reason stored with an entry that a user removed


@dataclass(frozen=True)
class Origin:
    world: str = ""
    family: str = ""
    task: str = ""
    episode: int = 0  # seed of the episode it was distilled from
    success: bool = False
    step: int = 0  # iteration that wrote it
    operation: str = "add"  # add, update, merge, or import (from a file)
    made_from: tuple[int, ...] = ()  # entries it replaced
    call: int | None = None  # the extractor call that wrote it, if any

    def is_in(self, scope: Sequence[str]) -> bool:
        """Whether it belongs to `scope`: (), (world,) or (world, family). Without world or family, it belongs to all."""
        return all(name in ("", wanted) for name, wanted in zip((self.world, self.family), scope, strict=False))


@dataclass(frozen=True)
class Entry:
    id: int
    text: str
    origin: Origin = field(default_factory=Origin)


@dataclass(frozen=True, eq=False)
class Call:
    """An extractor call: prompt, completion and their log-probabilities then; the extractor is trained on it later (Eq. 3)."""

    prompt: np.ndarray
    completion: np.ndarray
    logprobs: np.ndarray
    version: int = 0  # of the extractor


@dataclass
class Usage:
    retrieved: int = 0  # c(m) of Eq. 6
    last_retrieved: int = -(10**9)  # step
    wins: int = 0
    losses: int = 0  # of the episodes it guided
    trained: int = 0  # c_train(m) of Eq. 7
    last_trained: int = -(10**9)  # step


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


def connect(path: Path | None) -> sqlite3.Connection:
    """Open for writing, with a write-ahead log; None is in memory."""
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
        database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _TABLES)
    except sqlite3.DatabaseError as error:
        raise TacitError(f"cannot open the experience bank {path}: {error}.") from error
    return database


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open read-only. Without a write-ahead log beside the file, no process has it open for writing, so no lock is needed."""
    log = path.with_name(f"{path.name}-wal")
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{'' if log.exists() else '&immutable=1'}", uri=True)


@contextmanager
def transaction(database: sqlite3.Connection, path: Path | None) -> Iterator[None]:
    """Atomic; survives a killed process. With `synchronous=NORMAL`, a power cut may lose the last transactions, but no more."""
    try:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("COMMIT")
    except BaseException as error:
        if database.in_transaction:
            database.execute("ROLLBACK")
        if isinstance(error, sqlite3.OperationalError):
            raise TacitError(
                f"cannot write to the experience bank {path} ({error}). If another process writes to it, wait until "
                "that ends or name another bank; if the disk is full, free space."
            ) from error
        raise


def _column(database: sqlite3.Connection, query: str, *values: object) -> list[int]:
    return [number for (number,) in database.execute(query, values)]


_LIVE = "SELECT id FROM entries WHERE retired IS NULL"
_RETIRE = "UPDATE entries SET retired = ?, vector = x'' WHERE id = ?"


def remove_by_hand(path: Path, ids: Sequence[int]) -> int:
    """Retire entries, even while a run writes to the bank. Raises and retires none if one does not exist. Returns the number of
    live entries left."""
    with closing(connect(path)) as database, transaction(database, path):
        live = set(_column(database, _LIVE))
        for number in ids:
            if number not in live:
                raise TacitError(f"the bank has no entry {number}.")
            database.execute(_RETIRE, (BY_HAND, number))
        return len(live) - len(set(ids))


TOLERANCE = 1e-5
"""rounding of a float32 product, which depends on the batch size; scores within it are compared again in float64, so that a
query gets the same answer alone and in a batch"""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The live entries at one moment, oldest first. Search is exact."""

    vectors_ND: np.ndarray
    entries: tuple[Entry, ...]

    def nearest(self, vectors_QD: np.ndarray, count: int, scope: Sequence[str] = ()) -> list[list[Entry]]:
        """For each query, the `count` nearest entries by cosine, nearest first, ties by age, of `scope`."""
        if not self.entries or count < 1:
            return [[] for _ in vectors_QD]
        queries_QD = normalize(np.asarray(vectors_QD, np.float32))
        scores_QN = queries_QD @ self.vectors_ND.T
        excluded = max(0, len(self.entries) - count)
        ranked = []
        for query_D, scores_N in zip(queries_QD, scores_QN, strict=True):
            threshold = np.partition(scores_N, excluded)[excluded] - TOLERANCE
            near = np.flatnonzero(scores_N >= threshold)  # oldest first
            exact = np.round(self.vectors_ND[near].astype(np.float64) @ query_D.astype(np.float64), 9)
            ranked.append([self.entries[i] for i in near[np.argsort(-exact, kind="stable")[:count]]])
        if not scope or all(entry.origin.is_in(scope) for near in ranked for entry in near):
            return ranked
        rows = [row for row, entry in enumerate(self.entries) if entry.origin.is_in(scope)]
        return Snapshot(self.vectors_ND[rows], tuple(self.entries[row] for row in rows)).nearest(vectors_QD, count)


def normalize(vectors: np.ndarray) -> np.ndarray:
    """To unit length; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


class EntryRejected(TacitError):
    """An entry that cannot be stored."""


_open_banks: WeakValueDictionary[Path, Bank] = WeakValueDictionary()
"""banks that this process writes to; the file lock does not exclude a second bank in the same process"""


class Bank:
    """`embedder`: name of the model that makes the vectors; opening a bank of another embedder raises. So does opening one that
    has another writer: each would enforce `capacity` on its own entries only. `path` None is in memory.

    The file keeps every entry that ever existed, with its origin and events. Live entries also have a vector and the call that
    wrote them. A retired entry loses its vector at once, and its call once no more rewards for it can arrive.
    """

    _lock_fd: int | None = None

    def __init__(self, path: Path | None, embedder: str, dimensions: int, capacity: int = CAPACITY) -> None:
        self.path, self.embedder, self.dimensions, self.capacity = path, embedder, dimensions, capacity
        self._lock_fd = None if path is None else self._lock_file(path)
        self.database, self.write_lock = connect(path), threading.RLock()
        self._changes = self._change_count()
        self._by_hand: set[int] = set()  # removed by hand before the last `clear` or `restore_from`
        self._retired: list[int] = []  # retired since the last `drop_retired_calls`
        self._meta = {"format": FORMAT, "embedder": embedder, "dimensions": str(dimensions)}
        try:
            if not self.database.execute("SELECT * FROM meta").fetchone():
                with transaction(self.database, self.path):
                    self.database.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", self._meta.items())
            self._load()
            self._drop_surplus()
        except BaseException:
            self.close()
            raise

    def _lock_file(self, path: Path) -> int:
        """Become the only writer. The lock is released when the process ends, even if it is killed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        resolved, file, owner = path.resolve(), -1, str(os.getpid())
        try:
            if resolved in _open_banks:  # checked first: closing a second descriptor would release our own lock
                raise BlockingIOError
            file = os.open(resolved.with_name(f"{resolved.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if file >= 0:
                owner = os.pread(file, 20, 0).decode()
                os.close(file)
            raise TacitError(
                f"the experience bank {path} is in use: process {owner or 'unknown'} writes to it. Wait until that ends, or "
                "name another bank."
            ) from error
        os.ftruncate(file, 0)
        os.pwrite(file, owner.encode(), 0)
        _open_banks[resolved] = self
        return file

    def _change_count(self) -> int:
        """Changes whenever another connection has written."""
        return self.database.execute("PRAGMA data_version").fetchone()[0]

    def __len__(self) -> int:
        return len(self.entries)

    def close(self) -> None:
        with self.write_lock:
            self.database.close()
            if self._lock_fd is not None and self.path is not None:
                os.close(self._lock_fd)
                self._lock_fd = None
                _open_banks.pop(self.path.resolve(), None)

    def __del__(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)

    def refresh(self) -> None:
        """Apply removals by another process. If another thread is writing, return at once: that thread applies them."""
        if self.write_lock.acquire(blocking=False):
            try:
                self._apply_removals()
            finally:
                self.write_lock.release()

    def _apply_removals(self) -> None:
        if (changes := self._change_count()) != self._changes:
            self._changes = changes
            if retired := self.entries.keys() - _column(self.database, _LIVE):
                self._retired += retired
                self._publish((), set(retired))

    def add(self, text: str, vector_D: np.ndarray, origin: Origin, call: Call | None = None) -> Entry:
        """Add an entry and commit it. A full bank retires its oldest entry."""
        (entry,) = self.replace((), [(text, vector_D, origin, call)], "")
        return entry

    def replace(
        self, old: Sequence[int], new: Iterable[tuple[str, np.ndarray, Origin, Call | None]], reason: str
    ) -> tuple[Entry, ...]:
        """Replace old entries by new ones in one transaction. A full bank retires its oldest entries, even new ones."""
        added: list[tuple[Entry, np.ndarray]] = []
        with self.write_lock:
            with transaction(self.database, self.path):
                self._apply_removals()
                for text, vector_D, origin, call in new:
                    added.append(self._insert(validate_text(text), np.asarray(vector_D, np.float32), origin, call))
                outdated = {number: reason for number in old if number in self.entries}
                surplus = len(self.entries) - len(outdated) + len(added) - self.capacity
                in_order = chain((id for id in self.entries if id not in outdated), (entry.id for entry, _ in added))
                retired = outdated | dict.fromkeys(islice(in_order, max(0, surplus)), "the bank was full")
                self.database.executemany(_RETIRE, [(why or "removed", number) for number, why in retired.items()])
            self._retired += retired
            self._publish(added, set(retired))
        return tuple(entry for entry, _ in added)

    def _insert(self, text: str, vector_D: np.ndarray, origin: Origin, call: Call | None) -> tuple[Entry, np.ndarray]:
        if vector_D.shape != (self.dimensions,) or not np.isfinite(vector_D).all():
            raise EntryRejected(
                f"a vector of shape {vector_D.shape} cannot go into a bank of {self.dimensions} finite dimensions "
                f"({self.embedder})."
            )
        vector_D = normalize(vector_D)
        if call is not None:
            ids = [np.asarray(tokens, np.int64).tobytes() for tokens in (call.prompt, call.completion)]
            row = (*ids, np.asarray(call.logprobs, np.float32).tobytes(), call.version)
            cursor = self.database.execute("INSERT INTO calls (prompt, completion, logprobs, version) VALUES (?, ?, ?, ?)", row)
            origin = replace(origin, call=int(cursor.lastrowid or 0))
        cursor = self.database.execute(
            "INSERT INTO entries (text, vector, origin, call) VALUES (?, ?, ?, ?)",
            (text, vector_D.tobytes(), json.dumps(asdict(origin)), origin.call),
        )
        return Entry(int(cursor.lastrowid or 0), text, origin), vector_D

    def record(self, kind: str, ids: Sequence[int], step: int, task: str = "", success: bool | None = None) -> None:
        """Store and count events: `retrieved`, `guided` (an episode that ended with `success`) or `trained`."""
        if not ids:
            return
        with self.write_lock:
            with transaction(self.database, self.path):
                self.database.executemany(
                    "INSERT INTO events (entry, kind, step, task, success) VALUES (?, ?, ?, ?, ?)",
                    [(number, kind, step, task, None if success is None else int(success)) for number in ids],
                )
            for number in ids:
                _count(self.usage.get(number), kind, step, success)

    def call(self, entry: int) -> Call | None:
        """The extractor call that wrote the entry; None if there was none or it has been dropped."""
        with self.write_lock:
            row = self.database.execute(
                "SELECT prompt, completion, logprobs, version FROM calls JOIN entries ON calls.id = entries.call "
                "WHERE entries.id = ?",
                (entry,),
            ).fetchone()
        if row is None:
            return None
        prompt, completion = (np.frombuffer(blob, np.int64) for blob in row[:2])
        return Call(prompt, completion, np.frombuffer(row[2], np.float32), row[3])

    def training_steps(self, entry: int) -> list[int]:
        with self.write_lock:
            query = "SELECT step FROM events WHERE entry = ? AND kind = 'trained' ORDER BY number"
            return _column(self.database, query, entry)

    def drop_retired_calls(self) -> None:
        """Delete the extractor calls of retired entries. They get no more rewards, and prompts are most of a bank's size."""
        with self.write_lock:
            if not self._retired:
                return
            with transaction(self.database, self.path):
                for entry in self._retired:
                    calls = self.database.execute("SELECT call FROM entries WHERE id = ?", (entry,)).fetchall()
                    unset = "UPDATE entries SET call = NULL, origin = json_set(origin, '$.call', NULL) WHERE id = ?"
                    self.database.execute(unset, (entry,))
                    kept = "SELECT 1 FROM entries WHERE entries.call = calls.id"
                    self.database.executemany(f"DELETE FROM calls WHERE id = ? AND NOT EXISTS ({kept})", calls)
            self._retired = []

    def explain(self, entry: int) -> dict[str, Any]:
        """An entry's text, origin and events, the entries it replaced, and those that replaced it."""
        with self.write_lock:
            cursor = self.database.cursor()
            cursor.row_factory = sqlite3.Row  # rows by the names of their columns
            row = cursor.execute("SELECT id, text, origin, retired FROM entries WHERE id = ?", (entry,)).fetchone()
            if row is None:
                raise TacitError(f"{self.path or 'the bank'} has no entry {entry}.")
            origin = json.loads(row["origin"])
            by_id = "SELECT id, text, retired FROM entries WHERE id = ?"
            replaced = [dict(old) for number in origin["made_from"] for old in cursor.execute(by_id, (number,))]
            successors = "SELECT entries.id FROM entries, json_each(entries.origin, '$.made_from') AS old WHERE old.value = ?"
            replaced_by = _column(self.database, successors, entry)
            uses = "SELECT kind, step, task, success FROM events WHERE entry = ? ORDER BY number"
            events = [dict(event) for event in cursor.execute(uses, (entry,))]
            return {**dict(row), "origin": origin, "replaced": replaced, "replaced_by": replaced_by, "events": events}

    def clear(self) -> None:
        """Delete everything. Entries removed by hand stay removed, even if a restored copy contains them."""
        with self.write_lock:
            self._note_removed_by_hand()
            with transaction(self.database, self.path):
                for table in ("events", "entries", "calls"):
                    self.database.execute(f"DELETE FROM {table}")
            self._load()

    def _note_removed_by_hand(self) -> None:
        self._by_hand |= set(_column(self.database, "SELECT id FROM entries WHERE retired = ?", BY_HAND))

    def save_to(self, path: Path) -> None:
        with self.write_lock:
            path.unlink(missing_ok=True)
            try:
                self.database.execute("VACUUM INTO ?", (str(path),))
            except sqlite3.OperationalError as error:
                raise TacitError(
                    f"cannot write the experience bank to {path} ({error}). Check free space and permissions."
                ) from error

    def restore_from(self, path: Path) -> None:
        """Restore a copy (`save_to`), without entries removed by hand since. If unreadable, raises and changes nothing."""
        with self.write_lock, closing(connect_read_only(path)) as copy:
            self._read(copy, path)
            self._note_removed_by_hand()
            try:
                copy.backup(self.database)
            except sqlite3.OperationalError as error:
                raise TacitError(
                    f"cannot copy the experience bank {path} to {self.path} ({error}). Check free space and permissions."
                ) from error
            self._load()  # reload: another process may have written to the copy
            self._changes = self._change_count()
            if removed := sorted(self._by_hand & self.entries.keys()):
                self.replace(removed, (), BY_HAND)
            self._drop_surplus()

    def _drop_surplus(self) -> None:
        """Retire the oldest of a bank that was filled with a larger capacity."""
        if len(self.entries) > self.capacity:
            self.replace((), (), "")

    def _read(self, database: sqlite3.Connection, path: Path | None) -> tuple[Snapshot, dict[int, Usage], list[int]]:
        """(live entries, their usage, retired entries whose call is still there)."""
        meta = dict(database.execute("SELECT key, value FROM meta").fetchall())
        for key, value in self._meta.items():
            if meta.get(key) != value:
                raise TacitError(
                    f"the experience bank {path} was made with {key} {meta.get(key)!r}, but this is {value!r}: vectors "
                    "of two models cannot be compared. Use that embedding, or a new run with --extraction offline --bank FILE."
                )
        rows = database.execute("SELECT id, text, origin, vector FROM entries WHERE retired IS NULL ORDER BY id").fetchall()
        entries, vectors_ND = [], np.empty((len(rows), self.dimensions), np.float32)
        for row, (number, text, origin, vector) in enumerate(rows):
            fields = json.loads(origin)
            entries.append(Entry(number, text, Origin(**{**fields, "made_from": tuple(fields["made_from"])})))
            vectors_ND[row] = np.frombuffer(vector, np.float32)
        usage = {entry.id: Usage() for entry in entries}
        for number, *event in database.execute("SELECT entry, kind, step, success FROM events ORDER BY number"):
            _count(usage.get(number), *event)
        retired = _column(database, "SELECT id FROM entries WHERE retired IS NOT NULL AND call IS NOT NULL ORDER BY id")
        return Snapshot(vectors_ND, tuple(entries)), usage, retired

    def _load(self) -> None:
        self.snapshot, self.usage, self._retired = self._read(self.database, self.path)
        self.entries: dict[int, Entry] = {entry.id: entry for entry in self.snapshot.entries}  # live entries, oldest first
        self._buffer, self._first = self.snapshot.vectors_ND, 0
        """the live vectors, from row `_first` on; rows of a snapshot are never changed"""

    def _publish(self, added: Sequence[tuple[Entry, np.ndarray]], retired: set[int]) -> None:
        """Make a change visible. Additions go behind the end of the current snapshot. Removing the oldest entries moves
        nothing; removing others copies the rest to a new buffer."""
        new = [(entry, vector_D) for entry, vector_D in added if entry.id not in retired]
        snapshot, old = self.snapshot, retired & self.entries.keys()
        rows = sorted(bisect_left(snapshot.entries, number, key=lambda entry: entry.id) for number in old)
        if rows == list(range(len(rows))):
            kept, self._first = snapshot.entries[len(rows) :], self._first + len(rows)
        else:
            between = list(zip([0, *(row + 1 for row in rows)], [*rows, len(snapshot.entries)], strict=True))
            kept = tuple(entry for begin, end in between for entry in snapshot.entries[begin:end])
            self._buffer, self._first = np.empty((64 + len(kept) * 5 // 4, self.dimensions), np.float32), 0
            np.concatenate([snapshot.vectors_ND[begin:end] for begin, end in between], out=self._buffer[: len(kept)])
        last = self._first + len(kept)
        if last + len(new) > len(self._buffer):
            larger: np.ndarray = np.empty((64 + 2 * (len(kept) + len(new)), self.dimensions), np.float32)
            larger[: len(kept)] = self._buffer[self._first : last]
            self._buffer, self._first, last = larger, 0, len(kept)
        for i, (entry, vector_D) in enumerate(new):
            self._buffer[last + i] = vector_D
            self.usage[entry.id] = Usage()  # first: a reader that finds the entry needs it
            self.entries[entry.id] = entry
        self.snapshot = Snapshot(self._buffer[self._first : last + len(new)], kept + tuple(entry for entry, _ in new))
        for number in retired:
            self.entries.pop(number, None)
            self.usage.pop(number, None)


def _count(usage: Usage | None, kind: str, step: int, success: bool | None) -> None:
    if usage is None:  # the entry has been retired
        pass
    elif kind == "retrieved":
        usage.retrieved, usage.last_retrieved = usage.retrieved + 1, step
    elif kind == "trained":
        usage.trained, usage.last_trained = usage.trained + 1, step
    elif kind == "guided":
        usage.wins, usage.losses = usage.wins + bool(success), usage.losses + (not success)


def validate_text(text: str) -> str:
    """The text as it is stored, or `EntryRejected`."""
    text = " ".join(text.split("\0")).strip()
    if not text:
        raise EntryRejected("an entry must not be empty.")
    if len(text) > MAX_ENTRY_CHARS:
        raise EntryRejected(f"an entry of {len(text)} characters is longer than {MAX_ENTRY_CHARS}.")
    if not is_unicode(text):
        raise EntryRejected(f"an entry contains a lone surrogate: {text!r:.60}.")
    return text
