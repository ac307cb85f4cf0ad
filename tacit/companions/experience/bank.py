"""The experience bank: entries with vectors and origins, durable in SQLite (`BankStore`), searched in memory (`EntryMatrix`).

A write returns when it is committed and survives a killed process. Threads that write take turns; readers never wait and see
each change completely or not at all. One process at a time may write; another may only remove entries (`remove_by_hand`), which
the writer takes over before its next search or write.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.progress import is_unicode

MAX_ENTRY_CHARS = 4000
"""longer entries are rejected; a prompt shows them whole"""
BY_HAND = "removed by hand"
"""why an entry was retired, if a user did it"""


@dataclass(frozen=True)
class Origin:
    """Where an entry came from."""

    world: str = ""
    family: str = ""
    task: str = ""
    episode: int = 0
    """seed of the episode it was distilled from"""
    success: bool = False
    step: int = 0
    """iteration that wrote it"""
    operation: str = "add"
    """add, update, merge, or import (from a file)"""
    made_from: tuple[int, ...] = ()
    """entries it replaced"""
    call: int | None = None
    """the extractor call that wrote it, if any"""

    def is_in(self, place: Sequence[str]) -> bool:
        """Whether it belongs to a world, or to a world and a family. What has no world or family belongs to all of them."""
        return all(own in ("", wanted) for own, wanted in zip((self.world, self.family), place, strict=False))


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
    version: int = 0
    """of the extractor"""


@dataclass
class Usage:
    """How an entry has been used."""

    retrieved: int = 0
    """c(m) of Eq. 6"""
    last_retrieved: int = -(10**9)
    """step"""
    wins: int = 0
    losses: int = 0
    """of the episodes it guided"""
    trained: int = 0
    """c_train(m) of Eq. 7"""
    last_trained: int = -(10**9)
    """step"""


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


class EntryEvent(NamedTuple):
    """One use of an entry."""

    entry: int
    kind: str
    """`retrieved`, `guided` (an episode that ended with `success`) or `trained`"""
    step: int
    task: str = ""
    success: bool | None = None


class BankStore:
    """A bank in SQLite with a write-ahead log; `path` None is in memory. Callers hold the bank's lock.

    Keeps every entry that ever existed, with its origin and events. Live entries also have a vector and the call that wrote
    them. A retired entry loses its vector at once, and its call once no reward for it can arrive any more.
    """

    def __init__(self, path: Path | None, read_only: bool = False) -> None:
        self.path = path
        if path is not None and read_only:
            self._base = connect_read_only(path)
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
        """Atomic; survives a killed process once it returns. With `synchronous=NORMAL`, a power cut may lose the last
        transactions but not corrupt the bank."""
        try:
            self._base.execute("BEGIN IMMEDIATE")
            yield
            self._base.execute("COMMIT")
        except BaseException as error:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise TacitError(
                    f"cannot write to the experience bank {self.path} ({error}). If another process writes to it, wait until "
                    "that ends or name another bank; if the disk is full, free space."
                ) from error
            raise

    def add(self, text: str, vector_D: np.ndarray, origin: Origin, call: Call | None) -> Entry:
        origin = replace(origin, call=self._add_call(call) if call is not None else origin.call)
        row = (text, vector_D.tobytes(), json.dumps(asdict(origin)), origin.call)
        cursor = self._base.execute("INSERT INTO entries (text, vector, origin, call) VALUES (?, ?, ?, ?)", row)
        return Entry(int(cursor.lastrowid or 0), text, origin)

    def retire(self, entry: int, why: str) -> None:
        self._base.execute("UPDATE entries SET retired = ?, vector = x'' WHERE id = ?", (why or "removed", entry))

    def live_ids(self) -> set[int]:
        return {number for (number,) in self._base.execute("SELECT id FROM entries WHERE retired IS NULL")}

    def removed_by_hand(self) -> set[int]:
        return {number for (number,) in self._base.execute("SELECT id FROM entries WHERE retired = ?", (BY_HAND,))}

    def change_count(self) -> int:
        """Changes whenever another connection has written."""
        return self._base.execute("PRAGMA data_version").fetchone()[0]

    def retired_with_call(self) -> list[int]:
        rows = self._base.execute("SELECT id FROM entries WHERE retired IS NOT NULL AND call IS NOT NULL ORDER BY id")
        return [number for (number,) in rows]

    def drop_call(self, entry: int) -> None:
        """Delete the call of a retired entry, unless another entry still refers to it."""
        calls = self._base.execute("SELECT call FROM entries WHERE id = ?", (entry,)).fetchall()
        self._base.execute("UPDATE entries SET call = NULL, origin = json_set(origin, '$.call', NULL) WHERE id = ?", (entry,))
        kept = "SELECT 1 FROM entries WHERE entries.call = calls.id"
        self._base.executemany(f"DELETE FROM calls WHERE id = ? AND NOT EXISTS ({kept})", calls)

    def add_event(self, event: EntryEvent) -> None:
        row = (*event[:4], None if event.success is None else int(event.success))
        self._base.execute("INSERT INTO events (entry, kind, step, task, success) VALUES (?, ?, ?, ?, ?)", row)

    def live_entries(self) -> Iterator[tuple[Entry, np.ndarray]]:
        """Oldest first."""
        rows = self._base.execute("SELECT id, text, vector, origin FROM entries WHERE retired IS NULL ORDER BY id").fetchall()
        for number, text, vector, origin in rows:
            fields = json.loads(origin)
            entry = Entry(number, text, Origin(**{**fields, "made_from": tuple(fields["made_from"])}))
            yield entry, np.frombuffer(vector, np.float32)

    def events(self) -> Iterator[EntryEvent]:
        """Oldest first."""
        rows = self._base.execute("SELECT entry, kind, step, task, success FROM events ORDER BY number")
        for entry, kind, step, task, success in rows:
            yield EntryEvent(entry, kind, step, task, None if success is None else bool(success))

    def training_steps(self, entry: int) -> list[int]:
        """The iterations that trained on it."""
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

    def write_meta(self, meta: Mapping[str, str]) -> None:
        """Describe a new bank; an existing one keeps its description."""
        if not self._meta():
            with self.transaction():
                self._base.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", meta.items())

    def write_capacity(self, capacity: int) -> None:
        if self._meta().get("capacity") != str(capacity):
            with self.transaction():
                self._base.execute("INSERT OR REPLACE INTO meta VALUES ('capacity', ?)", (str(capacity),))

    def check_meta(self, wanted: Mapping[str, str]) -> None:
        found = self._meta()
        for key, value in wanted.items():
            if found.get(key) != value:
                raise TacitError(
                    f"the experience bank {self.path} was made with {key} {found.get(key)!r}, but this is {value!r}: vectors "
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
                f"cannot write the experience bank to {path} ({error}). Check free space and permissions."
            ) from error

    def restore_from(self, copy: BankStore) -> None:
        try:
            copy._base.backup(self._base)
        except sqlite3.OperationalError as error:
            raise TacitError(
                f"cannot copy the experience bank {copy.path} to {self.path} ({error}). Check free space and permissions."
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


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open without changing anything. Without a write-ahead log next to it no process has it open, so no lock is needed."""
    log = path.with_name(f"{path.name}-wal")
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{'' if log.exists() else '&immutable=1'}", uri=True)


TOLERANCE = 1e-5
"""rounding of a float32 product, which depends on the batch size; scores within it are compared again in float64, so that a
query gets the same answer alone and in a batch"""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The live entries at one moment, oldest first. Search is exact."""

    vectors_ND: np.ndarray
    entries: tuple[Entry, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(entry.id for entry in self.entries)

    def nearest(self, vectors_QD: np.ndarray, count: int, place: Sequence[str] = ()) -> list[list[Entry]]:
        """For each query, the `count` nearest entries by cosine, nearest first; ties by age. `place` (a world, or a world and a
        family) leaves out entries of other places."""
        if not self.entries or count < 1:
            return [[] for _ in vectors_QD]
        queries_QD = normalize(np.asarray(vectors_QD, np.float32))
        found = self._nearest(queries_QD, count)
        if not place or all(entry.origin.is_in(place) for near in found for entry in near):
            return found
        rows = [row for row, entry in enumerate(self.entries) if entry.origin.is_in(place)]
        return Snapshot(self.vectors_ND[rows], tuple(self.entries[row] for row in rows))._nearest(queries_QD, count)

    def _nearest(self, queries_QD: np.ndarray, count: int) -> list[list[Entry]]:
        if not self.entries:
            return [[] for _ in queries_QD]
        scores_QN = queries_QD @ self.vectors_ND.T
        others = max(0, len(self.entries) - count)
        found = []
        for query_D, scores_N in zip(queries_QD, scores_QN, strict=True):
            least = np.partition(scores_N, others)[others] - TOLERANCE
            near = np.flatnonzero(scores_N >= least)  # oldest first
            exact = np.round(self.vectors_ND[near].astype(np.float64) @ query_D.astype(np.float64), 9)
            found.append([self.entries[i] for i in near[np.argsort(-exact, kind="stable")[:count]]])
        return found


class EntryMatrix:
    """The live vectors as one matrix, for one writer at a time. Readers take `snapshot`, which is never modified: additions go
    behind its end, and any other change makes a new matrix."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._buffer: np.ndarray = np.empty((64, dimensions), np.float32)
        self._first = 0
        """buffer row of the oldest entry"""
        self.snapshot = Snapshot(self._buffer[:0], ())

    def update(self, gone: set[int], new: Sequence[tuple[Entry, np.ndarray]]) -> Snapshot:
        """The current snapshot without `gone` and with `new` appended; the caller assigns it to `snapshot`. Removing the oldest
        entries moves nothing; removing others copies the rest to a new buffer."""
        seen = self.snapshot
        rows = sorted(row for row in (_row(seen.entries, number) for number in gone) if row is not None)
        if rows == list(range(len(rows))):
            stay, self._first = seen.entries[len(rows) :], self._first + len(rows)
        else:
            between = list(zip([0, *(row + 1 for row in rows)], [*rows, len(seen.entries)], strict=True))
            stay = tuple(entry for begin, end in between for entry in seen.entries[begin:end])
            self._buffer, self._first = np.empty((64 + len(stay) * 5 // 4, self._dimensions), np.float32), 0
            np.concatenate([seen.vectors_ND[begin:end] for begin, end in between], out=self._buffer[: len(stay)])
        last = self._first + len(stay)
        if last + len(new) > len(self._buffer):
            wider: np.ndarray = np.empty((64 + 2 * (len(stay) + len(new)), self._dimensions), np.float32)
            wider[: len(stay)] = self._buffer[self._first : last]
            self._buffer, self._first, last = wider, 0, len(stay)
        for i, (_, vector_D) in enumerate(new):
            self._buffer[last + i] = vector_D
        return Snapshot(self._buffer[self._first : last + len(new)], stay + tuple(entry for entry, _ in new))


def normalize(vectors: np.ndarray) -> np.ndarray:
    """To unit length; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def _row(entries: Sequence[Entry], number: int) -> int | None:
    """Its index among entries with ascending ids."""
    row = bisect_left(entries, number, key=lambda entry: entry.id)
    return row if row < len(entries) and entries[row].id == number else None


CAPACITY = 20_000
FORMAT = "1"


class EntryRejected(TacitError):
    """An entry that cannot be stored."""


_open_here: WeakValueDictionary[Path, Bank] = WeakValueDictionary()
"""banks that this process writes to; the file lock does not tell one from another"""


class Bank:
    """`embedder`: name of the model that makes the vectors; opening a bank of another embedder raises. So does opening one that
    somebody else writes to: each would keep `capacity` entries of its own."""

    def __init__(self, path: Path | None, embedder: str, dimensions: int, capacity: int = CAPACITY) -> None:
        self.path, self.embedder, self.dimensions, self.capacity = path, embedder, dimensions, capacity
        self._lock = None if path is None else self._lock_file(path)
        self._store, self._matrix = BankStore(path), EntryMatrix(dimensions)
        self._writing = threading.RLock()
        self._changes = self._store.change_count()
        self._by_hand: set[int] = set()
        """removed by hand before the last `clear`"""
        self.entries: dict[int, Entry] = {}
        """live entries, oldest first"""
        self.usage: dict[int, Usage] = {}
        self._retired: list[int] = []
        """retired since the last `drop_retired_calls`"""
        self._meta = {"format": FORMAT, "embedder": embedder, "dimensions": str(dimensions)}
        try:
            self._store.write_meta(self._meta)
            self._set_state(self._read(self._store))
            if path is not None:
                self._store.write_capacity(capacity)
            self._drop_surplus()
        except BaseException:
            self.close()
            raise

    def _lock_file(self, path: Path) -> int:
        """Become the only writer. The lock ends with the process, however that ends."""
        path.parent.mkdir(parents=True, exist_ok=True)
        known = path.resolve()
        if known in _open_here:
            raise _in_use(path, str(os.getpid()))
        file = os.open(known.with_name(f"{known.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(file, 20, 0).decode()
            os.close(file)
            raise _in_use(path, owner) from error
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        _open_here[known] = self
        return file

    def __len__(self) -> int:
        return len(self.entries)

    def close(self) -> None:
        with self._writing:
            self._store.close()
            if self._lock is not None and self.path is not None:
                os.close(self._lock)
                self._lock = None
                _open_here.pop(self.path.resolve(), None)

    def __del__(self) -> None:
        if getattr(self, "_lock", None) is not None:
            os.close(self._lock)  # type: ignore[arg-type]

    def refresh(self) -> None:
        """Take over what another process removed. Does not wait for a thread that writes: it does the same."""
        if self._writing.acquire(blocking=False):
            try:
                self._take_over()
            finally:
                self._writing.release()

    def _take_over(self) -> None:
        if (changes := self._store.change_count()) != self._changes:
            self._changes = changes
            if gone := self.entries.keys() - self._store.live_ids():
                self._retired += gone
                self._publish((), set(gone))

    def snapshot(self) -> Snapshot:
        return self._matrix.snapshot

    def nearest(self, vectors_QD: np.ndarray, count: int) -> list[list[int]]:
        """For each query, the ids of the `count` nearest entries by cosine, nearest first; ties by age."""
        return [[entry.id for entry in found] for found in self._matrix.snapshot.nearest(vectors_QD, count)]

    def add(self, text: str, vector_D: np.ndarray, origin: Origin, call: Call | None = None) -> Entry:
        """Add an entry; a full bank retires its oldest. Returns when it is committed."""
        (entry,) = self.replace((), [(text, vector_D, origin, call)], "")
        return entry

    def replace(
        self, old: Sequence[int], new: Iterable[tuple[str, np.ndarray, Origin, Call | None]], why: str
    ) -> tuple[Entry, ...]:
        """Replace old entries by new ones in one transaction. A full bank retires its oldest, even of the new ones if they
        exceed its capacity."""
        made: list[tuple[Entry, np.ndarray]] = []
        with self._writing:
            with self._store.transaction():
                self._take_over()
                for text, vector_D, origin, call in new:
                    vector_D = self._checked_vector(vector_D)
                    made.append((self._store.add(validate_text(text), vector_D, origin, call), vector_D))
                leaving = {number: why for number in old if number in self.entries}
                crowded = len(self.entries) - len(leaving) + len(made) - self.capacity
                in_order = chain((entry for entry in self.entries if entry not in leaving), (entry.id for entry, _ in made))
                oldest = islice(in_order, max(0, crowded))
                gone = leaving | dict.fromkeys(oldest, "the bank was full")
                for number, reason in gone.items():
                    self._store.retire(number, reason)
            self._retired += gone
            self._publish(made, set(gone))
        return tuple(entry for entry, _ in made)

    def remove(self, ids: Sequence[int], why: str = BY_HAND) -> None:
        for number in ids:
            if number not in self.entries:
                raise TacitError(f"there is no entry {number} in the bank.")
        self.replace(ids, (), why)

    def record(self, kind: str, ids: Sequence[int], step: int, task: str = "", success: bool | None = None) -> None:
        """Store and count events: `retrieved`, `guided` (an episode that ended with `success`) or `trained`."""
        events = [EntryEvent(number, kind, step, task, success) for number in ids]
        if not events:
            return
        with self._writing:
            with self._store.transaction():
                for event in events:
                    self._store.add_event(event)
            for event in events:
                _count(event, self.usage)

    def call(self, entry: int) -> Call | None:
        """The extractor call that wrote the entry; None if there was none or it has been dropped."""
        with self._writing:
            return self._store.call(entry)

    def training_steps(self, entry: int) -> list[int]:
        """The iterations that trained on it, also of a retired entry."""
        with self._writing:
            return self._store.training_steps(entry)

    def drop_retired_calls(self) -> None:
        """Delete the calls of retired entries: prompts are most of a bank's size, and these get no more rewards. Texts, origins
        and events stay."""
        with self._writing:
            if self._retired:
                with self._store.transaction():
                    for number in self._retired:
                        self._store.drop_call(number)
                self._retired = []

    def explain(self, entry: int) -> dict[str, Any]:
        """Its origin, the entries it replaced and was replaced by, and its events."""
        with self._writing:
            return self._store.explain(entry)

    def clear(self) -> None:
        """Delete everything. What was removed by hand stays removed if a copy with it is restored."""
        with self._writing:
            self._by_hand |= self._store.removed_by_hand()
            with self._store.transaction():
                self._store.clear()
            self._set_state(self._read(self._store))

    def save_to(self, path: Path) -> None:
        """Write a copy of the whole bank."""
        with self._writing:
            self._store.save_to(path)

    def restore_from(self, path: Path) -> None:
        """Go back to such a copy, without entries that were removed by hand since. One that is unreadable or of another
        embedder raises, and nothing changes here."""
        with self._writing, closing(BankStore(path, read_only=True)) as copy:
            self._read(copy)
            self._by_hand |= self._store.removed_by_hand()
            self._store.restore_from(copy)
            self._set_state(self._read(self._store))  # again: another process may write to the copy
            self._changes = self._store.change_count()
            if removed := sorted(self._by_hand & self.entries.keys()):
                self.replace(removed, (), BY_HAND)
            self._drop_surplus()

    def _drop_surplus(self) -> None:
        """Retire the oldest of a bank that was filled with a larger capacity."""
        if len(self.entries) > self.capacity:
            self.replace((), (), "")

    def _read(self, store: BankStore) -> _BankState:
        store.check_meta(self._meta)
        live, matrix = list(store.live_entries()), EntryMatrix(self.dimensions)
        matrix.snapshot = matrix.update(set(), live)
        usage = {entry.id: Usage() for entry, _ in live}
        for event in store.events():
            _count(event, usage)
        return _BankState({entry.id: entry for entry, _ in live}, usage, store.retired_with_call(), matrix)

    def _set_state(self, state: _BankState) -> None:
        self.entries, self.usage, self._retired, self._matrix = state

    def _publish(self, made: Sequence[tuple[Entry, np.ndarray]], gone: set[int]) -> None:
        new = [(entry, vector_D) for entry, vector_D in made if entry.id not in gone]
        snapshot = self._matrix.update(gone, new)
        for entry, _ in new:
            self.usage[entry.id] = Usage()  # first: a reader that finds the entry needs it
            self.entries[entry.id] = entry
        self._matrix.snapshot = snapshot
        for number in gone:
            self.entries.pop(number, None)
            self.usage.pop(number, None)

    def _checked_vector(self, vector_D: np.ndarray) -> np.ndarray:
        vector_D = np.asarray(vector_D, np.float32)
        if vector_D.shape != (self.dimensions,) or not np.isfinite(vector_D).all():
            raise EntryRejected(
                f"a vector of shape {vector_D.shape} cannot go into a bank of {self.dimensions} finite dimensions "
                f"({self.embedder})."
            )
        return normalize(vector_D)


def _in_use(path: Path, process: str) -> TacitError:
    return TacitError(
        f"the experience bank {path} is in use: process {process or 'unknown'} writes to it. Wait until that ends, or name "
        "another bank."
    )


def remove_by_hand(path: Path, ids: Sequence[int]) -> int:
    """Retire entries of a bank, also of one that a run writes to. Returns how many are left; removes nothing if one of them is
    not there."""
    with closing(BankStore(path)) as store, store.transaction():
        live = store.live_ids()
        for number in ids:
            if number not in live:
                raise TacitError(f"there is no entry {number} in the bank.")
            store.retire(number, BY_HAND)
        return len(live) - len(set(ids))


class _BankState(NamedTuple):
    """What a bank keeps in memory."""

    entries: dict[int, Entry]
    usage: dict[int, Usage]
    retired: list[int]
    matrix: EntryMatrix


def _count(event: EntryEvent, usages: Mapping[int, Usage]) -> None:
    usage = usages.get(event.entry)
    if usage is None:  # retired since
        return
    if event.kind == "retrieved":
        usage.retrieved, usage.last_retrieved = usage.retrieved + 1, event.step
    elif event.kind == "trained":
        usage.trained, usage.last_trained = usage.trained + 1, event.step
    elif event.kind == "guided":
        usage.wins, usage.losses = usage.wins + bool(event.success), usage.losses + (not event.success)


def validate_text(text: str) -> str:
    """The text as it is stored, or `EntryRejected`."""
    text = " ".join(text.split("\0")).strip()
    if not text:
        raise EntryRejected("an entry must not be empty.")
    if len(text) > MAX_ENTRY_CHARS:
        raise EntryRejected(f"an entry of {len(text)} characters is longer than {MAX_ENTRY_CHARS}.")
    if not is_unicode(text):
        raise EntryRejected(f"an entry contains half a character (a lone surrogate): {text!r:.60}.")
    return text
