"""The experience bank: durable on disk (disk.py), searched in memory (matrix.py).

A write returns when it is committed: what was acknowledged outlives a killed process. Writers take turns; readers never wait,
and see every change whole or not at all.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.progress import is_unicode

# What a bank holds: texts with where they came from, and the calls of the extractor that wrote them.

MAX_ENTRY_CHARS = 4000
"""characters of an entry; longer ones are refused"""


@dataclass(frozen=True)
class Origin:
    """Where an entry came from."""

    world: str = ""
    family: str = ""
    task: str = ""
    episode: int = 0
    """the seed of the episode it was distilled from"""
    success: bool = False
    step: int = 0
    """iteration in which it was written"""
    operation: str = "add"
    """add, update or merge; import for those that came from a file"""
    made_from: tuple[int, ...] = ()
    """entries it takes the place of"""
    call: int | None = None
    """the extractor's call that wrote it, where there was one"""


@dataclass(frozen=True)
class Entry:
    id: int
    text: str
    origin: Origin = field(default_factory=Origin)


@dataclass(frozen=True, eq=False)
class Call:
    """What the extractor read and wrote, with the log-probabilities of that moment: what it is trained on later (Eq. 3)."""

    prompt: np.ndarray
    completion: np.ndarray
    logprobs: np.ndarray
    version: int = 0
    """of the extractor's weights"""


@dataclass
class Usage:
    """How an entry has been used so far."""

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


# A bank on disk: SQLite with a write-ahead log. Every entry that ever was, with its origin; who was guided by it, with what
# result; when it was trained on. The living have a vector, too, and the call that wrote them: of an entry that has gone the one
# goes with it, the other once nobody can be rewarded for it any more. Whoever writes holds the bank's lock.

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
    """Something that happened to an entry."""

    entry: int
    kind: str
    """`retrieved`, `guided` (an episode that ended with `success`) or `trained`"""
    step: int
    task: str = ""
    success: bool | None = None


class BankStore:
    """`path` None keeps it in memory; one that is only read is left as it is, and needs one."""

    def __init__(self, path: Path | None, only_read: bool = False) -> None:
        self.path = path
        if path is not None and only_read:
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

    def note(self, event: EntryEvent) -> None:
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

    def events(self) -> Iterator[EntryEvent]:
        """In the order in which they happened."""
        rows = self._base.execute("SELECT entry, kind, step, task, success FROM events ORDER BY number")
        for entry, kind, step, task, success in rows:
            yield EntryEvent(entry, kind, step, task, None if success is None else bool(success))

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

    def restore_from(self, copy: BankStore) -> None:
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


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Without a trace. Nobody has a bank open that has no write-ahead log beside it: then not even a lock is taken."""
    log = path.with_name(f"{path.name}-wal")
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{'' if log.exists() else '&immutable=1'}", uri=True)


# The living entries and their vectors as one matrix, in order of age: search is exact.
#
# Readers take the matrix as it is at that moment and never wait: additions go behind its end, and whatever changes what is
# there makes a new one.

SLACK = 1e-5
"""what a product in single precision may be off by, depending on how many are asked at once: those within it
are compared once more in double precision, so that a query is answered the same alone and among others"""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The living entries at one moment."""

    vectors_ND: np.ndarray
    entries: tuple[Entry, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(entry.id for entry in self.entries)

    def nearest(self, vectors_QD: np.ndarray, count: int) -> list[list[Entry]]:
        """For each query the `count` nearest entries by cosine, nearest first; equally near ones by age."""
        if not self.entries or count < 1:
            return [[] for _ in vectors_QD]
        queries_QD = normalize(np.asarray(vectors_QD, np.float32))
        scores_QN = queries_QD @ self.vectors_ND.T
        beyond = max(0, len(self.entries) - count)
        found = []
        for query_D, scores_N in zip(queries_QD, scores_QN, strict=True):
            least = np.partition(scores_N, beyond)[beyond] - SLACK
            near = np.flatnonzero(scores_N >= least)  # rows are in order of age
            exact = np.round(self.vectors_ND[near].astype(np.float64) @ query_D.astype(np.float64), 9)
            found.append([self.entries[i] for i in near[np.argsort(-exact, kind="stable")[:count]]])
        return found


class EntryMatrix:
    """For one writer at a time; `now` is whole at every moment."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._buffer: np.ndarray = np.empty((64, dimensions), np.float32)
        self._first = 0
        """row of the buffer that the oldest entry is in"""
        self.now = Snapshot(self._buffer[:0], ())

    def changed(self, gone: set[int], new: Sequence[tuple[Entry, np.ndarray]]) -> Snapshot:
        """The present snapshot without some and with others behind it; it is `now` once its writer says so. Where the oldest
        go, the others stay where they are; where one goes from among them, there is a new matrix, and whoever is reading goes
        on with the old one."""
        seen = self.now
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
    """To length 1; a vector of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def _row(entries: Sequence[Entry], number: int) -> int | None:
    """Where it is among entries whose ids ascend."""
    row = bisect_left(entries, number, key=lambda entry: entry.id)
    return row if row < len(entries) and entries[row].id == number else None


CAPACITY = 20_000
FORMAT = "1"


class EntryRejected(TacitError):
    """An entry that no bank would keep."""


class Bank:
    """`embedder` names the model that made the vectors; a bank of another one is refused."""

    def __init__(self, path: Path | None, embedder: str, dimensions: int, capacity: int = CAPACITY) -> None:
        self.path, self.embedder, self.dimensions, self.capacity = path, embedder, dimensions, capacity
        self._disk, self._matrix = BankStore(path), EntryMatrix(dimensions)
        self._writing = threading.RLock()
        self.entries: dict[int, Entry] = {}
        """the living, oldest first"""
        self.usage: dict[int, Usage] = {}
        self._departed: list[int] = []
        """gone since calls were last let go"""
        self._told = {"format": FORMAT, "embedder": embedder, "dimensions": str(dimensions)}
        self._disk.sign(self._told)
        self._hold(self._read(self._disk))

    def __len__(self) -> int:
        return len(self.entries)

    def close(self) -> None:
        with self._writing:
            self._disk.close()

    def snapshot(self) -> Snapshot:
        return self._matrix.now

    def nearest(self, vectors_QD: np.ndarray, count: int) -> list[list[int]]:
        """For each query the ids of the `count` nearest entries by cosine, nearest first; equally near ones by age."""
        return [[entry.id for entry in found] for found in self._matrix.now.nearest(vectors_QD, count)]

    def add(self, text: str, vector_D: np.ndarray, origin: Origin, call: Call | None = None) -> Entry:
        """One entry more; the oldest go where the bank is full. Returns when it is committed."""
        (entry,) = self.replace((), [(text, vector_D, origin, call)], "")
        return entry

    def replace(
        self, old: Sequence[int], new: Iterable[tuple[str, np.ndarray, Origin, Call | None]], why: str
    ) -> tuple[Entry, ...]:
        """New entries in the place of old ones, in one transaction: readers see either all of it or nothing. Where the bank is
        full the oldest go, of the new ones, too, if there are more of them than it holds."""
        made: list[tuple[Entry, np.ndarray]] = []
        with self._writing:
            with self._disk.transaction():
                for text, vector_D, origin, call in new:
                    vector_D = self._checked_vector(vector_D)
                    made.append((self._disk.add(validate_text(text), vector_D, origin, call), vector_D))
                leaving = set(old)
                crowded = len(self.entries) - len(leaving & self.entries.keys()) + len(made) - self.capacity
                in_order = chain((entry for entry in self.entries if entry not in leaving), (entry.id for entry, _ in made))
                oldest = islice(in_order, max(0, crowded))
                gone = {**dict.fromkeys(old, why), **dict.fromkeys(oldest, "the bank was full")}
                for number, reason in gone.items():
                    self._disk.retire(number, reason)
            self._departed += gone
            self._publish(made, set(gone))
        return tuple(entry for entry, _ in made)

    def remove(self, ids: Sequence[int], why: str = "removed by hand") -> None:
        for number in ids:
            if number not in self.entries:
                raise TacitError(f"there is no entry {number} in the bank.")
        self.replace(ids, (), why)

    def happened(self, kind: str, ids: Sequence[int], step: int, task: str = "", success: bool | None = None) -> None:
        """`retrieved`, `guided` (an episode that ended with `success`) or `trained`; counted, and kept for explaining."""
        events = [EntryEvent(number, kind, step, task, success) for number in ids]
        if not events:
            return
        with self._writing:
            with self._disk.transaction():
                for event in events:
                    self._disk.note(event)
            for event in events:
                _count(event, self.usage)

    def call(self, entry: int) -> Call | None:
        """What the extractor read and wrote when it made the entry; None where it was made otherwise, or has been let go."""
        with self._writing:
            return self._disk.call(entry)

    def trainings(self, entry: int) -> list[int]:
        """The steps in which it was trained on, also of one that has gone."""
        with self._writing:
            return self._disk.trainings(entry)

    def let_calls_go(self) -> None:
        """Of the entries that have gone: prompts are most of a bank, and nobody will be rewarded for them any more. Their
        texts, where they came from and what happened to them stay."""
        with self._writing:
            if self._departed:
                with self._disk.transaction():
                    for number in self._departed:
                        self._disk.drop_call(number)
                self._departed = []

    def explain(self, entry: int) -> dict[str, Any]:
        """Where it came from, whom it guided, with what result, what it took the place of and what took its own."""
        with self._writing:
            return self._disk.explain(entry)

    def clear(self) -> None:
        """Forget everything: as if it had just been made."""
        with self._writing:
            with self._disk.transaction():
                self._disk.clear()
            self._hold(self._read(self._disk))

    def save_to(self, path: Path) -> None:
        """A copy of it all, as it is now."""
        with self._writing:
            self._disk.save_to(path)

    def restore_from(self, path: Path) -> None:
        """Go back to such a copy. One of another embedding, or that cannot be read, is refused with nothing changed here."""
        with self._writing, closing(BankStore(path, only_read=True)) as copy:
            self._read(copy)
            self._disk.restore_from(copy)
            self._hold(self._read(self._disk))  # once more: a run may be writing into what is copied

    def _read(self, disk: BankStore) -> _Known:
        """What is there, and nothing else."""
        disk.check(self._told)
        living, matrix = list(disk.living()), EntryMatrix(self.dimensions)
        matrix.now = matrix.changed(set(), living)
        usage = {entry.id: Usage() for entry, _ in living}
        for event in disk.events():
            _count(event, usage)
        return _Known({entry.id: entry for entry, _ in living}, usage, disk.retired_with_call(), matrix)

    def _hold(self, known: _Known) -> None:
        self.entries, self.usage, self._departed, self._matrix = known

    def _publish(self, made: Sequence[tuple[Entry, np.ndarray]], gone: set[int]) -> None:
        new = [(entry, vector_D) for entry, vector_D in made if entry.id not in gone]
        changed = self._matrix.changed(gone, new)
        for entry, _ in new:
            self.usage[entry.id] = Usage()  # first: whoever finds the entry finds this
            self.entries[entry.id] = entry
        self._matrix.now = changed
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


class _Known(NamedTuple):
    """What a bank has in memory of what is on disk."""

    entries: dict[int, Entry]
    usage: dict[int, Usage]
    departed: list[int]
    matrix: EntryMatrix


def _count(event: EntryEvent, usages: Mapping[int, Usage]) -> None:
    usage = usages.get(event.entry)
    if usage is None:  # it has gone since; what happened to it is still on disk
        return
    if event.kind == "retrieved":
        usage.retrieved, usage.last_retrieved = usage.retrieved + 1, event.step
    elif event.kind == "trained":
        usage.trained, usage.last_trained = usage.trained + 1, event.step
    elif event.kind == "guided":
        usage.wins, usage.losses = usage.wins + bool(event.success), usage.losses + (not event.success)


def validate_text(text: str) -> str:
    told = " ".join(text.split("\0")).strip()
    if not told:
        raise EntryRejected("an entry must say something.")
    if len(told) > MAX_ENTRY_CHARS:
        raise EntryRejected(f"an entry of {len(told)} characters is longer than {MAX_ENTRY_CHARS}.")
    if not is_unicode(told):
        raise EntryRejected(f"an entry with half a character (a lone surrogate) in it: {told!r:.60}.")
    return told
