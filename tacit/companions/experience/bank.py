"""The experience bank: durable in SQLite, searched in memory.

On disk (write-ahead log): every entry that ever was, with its vector, its origin and the call that wrote it; who was guided by
it, with what result; when it was trained on. A write returns when it is committed: what was acknowledged outlives a crash.

In memory: the vectors of the living entries as one matrix, so that search is exact, and their texts. Readers take the matrix as
it is at that moment and never wait: additions go behind its end, and whatever changes what is there makes a new one.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tacit.companions.experience.entries import LONGEST, Call, Entry, Origin, Usage
from tacit.core.errors import TacitError

CAPACITY = 20_000
FORMAT = "1"
SLACK = 1e-5
"""what a product in single precision may be off by, depending on how many are asked at once: those within it
are compared once more in double precision, so that a query is answered the same alone and among others"""
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS calls (id INTEGER PRIMARY KEY, prompt BLOB, completion BLOB, logprobs BLOB, version INTEGER);
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY, text TEXT NOT NULL, vector BLOB NOT NULL, origin TEXT NOT NULL, call INTEGER REFERENCES calls(id),
    retired TEXT);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, entry INTEGER NOT NULL, kind TEXT NOT NULL, step INTEGER NOT NULL, task TEXT, success INTEGER);
CREATE INDEX IF NOT EXISTS events_of ON events(entry);
"""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The living entries at one moment."""

    vectors_ND: np.ndarray
    ids: tuple[int, ...]


class Bank:
    """`embedder` names the model that made the vectors; a bank of another one is refused."""

    def __init__(self, path: Path | None, embedder: str, dimensions: int, capacity: int = CAPACITY) -> None:
        self.path, self.embedder, self.dimensions, self.capacity = path, embedder, dimensions, capacity
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._disk = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
            self._disk.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _TABLES)
        except sqlite3.DatabaseError as error:
            raise TacitError(f"cannot open the experience bank {path}: {error}.") from error
        self._writing = threading.RLock()
        self.entries: dict[int, Entry] = {}
        """the living, oldest first"""
        self.usage: dict[int, Usage] = {}
        self._buffer: np.ndarray = np.empty((64, dimensions), np.float32)
        self._first = 0
        """row of the buffer that the oldest entry is in"""
        self._snapshot = Snapshot(self._buffer[:0], ())
        self._check_meta()
        self._read()

    def __len__(self) -> int:
        return len(self.entries)

    def close(self) -> None:
        with self._writing:
            self._disk.close()

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def nearest(self, vectors_QD: np.ndarray, count: int) -> list[list[int]]:
        """For each query the ids of the `count` nearest entries by cosine, nearest first; equally near ones by age."""
        seen = self._snapshot
        if not seen.ids or count < 1:
            return [[] for _ in vectors_QD]
        queries_QD = normalised(np.asarray(vectors_QD, np.float32))
        scores_QN = queries_QD @ seen.vectors_ND.T
        beyond = max(0, len(seen.ids) - count)
        found = []
        for query_D, scores_N in zip(queries_QD, scores_QN, strict=True):
            least = np.partition(scores_N, beyond)[beyond] - SLACK
            near = np.flatnonzero(scores_N >= least)  # rows are in order of age
            exact = np.round(seen.vectors_ND[near].astype(np.float64) @ query_D.astype(np.float64), 9)
            found.append([seen.ids[i] for i in near[np.argsort(-exact, kind="stable")[:count]]])
        return found

    def add(self, text: str, vector_D: np.ndarray, origin: Origin, call: Call | None = None) -> Entry:
        """One entry more; the oldest go where the bank is full. Returns when it is on disk."""
        (entry,) = self.replace((), [(text, vector_D, origin, call)], "")
        return entry

    def replace(
        self, old: Sequence[int], new: Iterable[tuple[str, np.ndarray, Origin, Call | None]], why: str
    ) -> tuple[Entry, ...]:
        """New entries in the place of old ones, in one transaction: readers see either all of it or nothing."""
        made: list[tuple[Entry, np.ndarray]] = []
        with self._writing, self._transaction():
            for text, vector_D, origin, call in new:
                text = checked(text)
                vector_D = self._checked_vector(vector_D)
                number = self._keep_call(call) if call is not None else origin.call
                origin = replace(origin, call=number)
                row = (text, vector_D.tobytes(), json.dumps(asdict(origin)), number)
                cursor = self._disk.execute("INSERT INTO entries (text, vector, origin, call) VALUES (?, ?, ?, ?)", row)
                made.append((Entry(int(cursor.lastrowid or 0), text, origin), vector_D))
            leaving = set(old)
            crowded = len(self.entries) - len(leaving & self.entries.keys()) + len(made) - self.capacity
            oldest = islice((entry for entry in self.entries if entry not in leaving), max(0, crowded))
            gone = {**dict.fromkeys(old, why), **dict.fromkeys(oldest, "the bank was full")}
            for number, reason in gone.items():
                self._disk.execute("UPDATE entries SET retired = ? WHERE id = ?", (reason or "removed", number))
        with self._writing:
            self._publish(made, set(gone))
        return tuple(entry for entry, _ in made)

    def remove(self, ids: Sequence[int], why: str = "removed by hand") -> None:
        for number in ids:
            if number not in self.entries:
                raise TacitError(f"there is no entry {number} in the bank.")
        self.replace(ids, (), why)

    def happened(self, kind: str, ids: Sequence[int], step: int, task: str = "", success: bool | None = None) -> None:
        """`retrieved`, `guided` (an episode that ended with `success`) or `trained`; counted, and kept for explaining."""
        with self._writing, self._transaction():
            for number in ids:
                row = (number, kind, step, task, None if success is None else int(success))
                self._disk.execute("INSERT INTO events (entry, kind, step, task, success) VALUES (?, ?, ?, ?, ?)", row)
                self._count(number, kind, step, success)

    def call(self, entry: int) -> Call | None:
        """What the extractor read and wrote when it made the entry."""
        row = self._disk.execute(
            "SELECT prompt, completion, logprobs, version FROM calls JOIN entries ON calls.id = entries.call "
            "WHERE entries.id = ?",
            (entry,),
        ).fetchone()
        if row is None:
            return None
        prompt, completion = (np.frombuffer(blob, np.int64) for blob in row[:2])
        return Call(prompt, completion, np.frombuffer(row[2], np.float32), row[3])

    def explain(self, entry: int) -> dict[str, Any]:
        """Where it came from, whom it guided, with what result, what it took the place of and what took its own."""
        row = self._disk.execute("SELECT text, origin, retired FROM entries WHERE id = ?", (entry,)).fetchone()
        if row is None:
            raise TacitError(f"there is no entry {entry} in {self.path or 'the bank'}.")
        events = self._disk.execute(
            "SELECT kind, step, task, success FROM events WHERE entry = ? ORDER BY number", (entry,)
        ).fetchall()
        origin = json.loads(row[1])
        before = [self._disk.execute("SELECT id, text, retired FROM entries WHERE id = ?", (n,)) for n in origin["made_from"]]
        after = self._disk.execute(
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

    def save_to(self, path: Path) -> None:
        """A copy of it all, as it is now."""
        with self._writing:
            path.unlink(missing_ok=True)
            self._disk.execute("VACUUM INTO ?", (str(path),))

    def restore_from(self, path: Path) -> None:
        """Go back to such a copy."""
        with self._writing:
            source = read_only(path)
            try:
                source.backup(self._disk)
            finally:
                source.close()
            self.entries, self.usage = {}, {}
            self._first, self._snapshot = 0, Snapshot(self._buffer[:0], ())
            self._check_meta()
            self._read()

    def _publish(self, made: Sequence[tuple[Entry, np.ndarray]], gone: set[int]) -> None:
        """Rows are in order of age. Where the oldest go, the others stay where they are; where one goes from among them, there
        is a new matrix, and whoever is reading goes on with the old one."""
        seen = self._snapshot
        rows = sorted(row for row in (_row(seen.ids, number) for number in gone) if row is not None)
        new = [(entry, vector_D) for entry, vector_D in made if entry.id not in gone]
        if rows == list(range(len(rows))):
            ids, self._first = seen.ids[len(rows) :], self._first + len(rows)
        else:
            between = list(zip([0, *(row + 1 for row in rows)], [*rows, len(seen.ids)], strict=True))
            ids = tuple(number for begin, end in between for number in seen.ids[begin:end])
            self._buffer, self._first = np.empty((64 + len(ids) * 5 // 4, self.dimensions), np.float32), 0
            np.concatenate([seen.vectors_ND[begin:end] for begin, end in between], out=self._buffer[: len(ids)])
        last = self._first + len(ids)
        if last + len(new) > len(self._buffer):
            wider: np.ndarray = np.empty((64 + 2 * (len(ids) + len(new)), self.dimensions), np.float32)
            wider[: len(ids)] = self._buffer[self._first : last]
            self._buffer, self._first, last = wider, 0, len(ids)
        for i, (_, vector_D) in enumerate(new):
            self._buffer[last + i] = vector_D
        for number in gone:
            self.entries.pop(number, None)
            self.usage.pop(number, None)
        for entry, _ in new:
            self.usage[entry.id] = Usage()  # first: whoever finds the entry finds this
            self.entries[entry.id] = entry
        self._snapshot = Snapshot(self._buffer[self._first : last + len(new)], (*ids, *(entry.id for entry, _ in new)))

    def _count(self, number: int, kind: str, step: int, success: bool | None) -> None:
        usage = self.usage.get(number)
        if usage is None:  # it has gone since; what happened to it is still on disk
            return
        if kind == "retrieved":
            usage.retrieved, usage.last_retrieved = usage.retrieved + 1, step
        elif kind == "trained":
            usage.trained, usage.last_trained = usage.trained + 1, step
        elif kind == "guided":
            usage.wins, usage.losses = usage.wins + bool(success), usage.losses + (not success)

    def _keep_call(self, call: Call) -> int:
        row = (
            np.asarray(call.prompt, np.int64).tobytes(),
            np.asarray(call.completion, np.int64).tobytes(),
            np.asarray(call.logprobs, np.float32).tobytes(),
            call.version,
        )
        cursor = self._disk.execute("INSERT INTO calls (prompt, completion, logprobs, version) VALUES (?, ?, ?, ?)", row)
        return int(cursor.lastrowid or 0)

    def _checked_vector(self, vector_D: np.ndarray) -> np.ndarray:
        vector_D = np.asarray(vector_D, np.float32)
        if vector_D.shape != (self.dimensions,) or not np.isfinite(vector_D).all():
            raise TacitError(
                f"a vector of shape {vector_D.shape} cannot go into a bank of {self.dimensions} finite dimensions "
                f"({self.embedder})."
            )
        return normalised(vector_D)

    def _check_meta(self) -> None:
        wanted = {"format": FORMAT, "embedder": self.embedder, "dimensions": str(self.dimensions)}
        with self._writing:
            found = dict(self._disk.execute("SELECT key, value FROM meta").fetchall())
            if not found:
                self._disk.executemany("INSERT INTO meta VALUES (?, ?)", wanted.items())
                return
        for key, value in wanted.items():
            if found.get(key) != value:
                raise TacitError(
                    f"the experience bank {self.path} was made with {key} {found.get(key)!r}, and this is {value!r}: vectors "
                    "of two models cannot be compared. Name another bank, or export it and import it here (tacit bank)."
                )

    def _read(self) -> None:
        rows = self._disk.execute("SELECT id, text, vector, origin FROM entries WHERE retired IS NULL ORDER BY id").fetchall()
        made = []
        for number, text, vector, origin in rows:
            told = json.loads(origin)
            made.append(
                (
                    Entry(number, text, Origin(**{**told, "made_from": tuple(told["made_from"])})),
                    np.frombuffer(vector, np.float32),
                )
            )
        self._publish(made, set())
        for entry, kind, step, success in self._disk.execute("SELECT entry, kind, step, success FROM events ORDER BY number"):
            self._count(entry, kind, step, None if success is None else bool(success))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._disk.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._disk.execute("ROLLBACK")
            raise
        self._disk.execute("COMMIT")


def read_only(path: Path) -> sqlite3.Connection:
    """Without a trace. Nobody has a bank open that has no write-ahead log beside it: then not even a lock is taken."""
    log = path.with_name(f"{path.name}-wal")
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{'' if log.exists() else '&immutable=1'}", uri=True)


def checked(text: str) -> str:
    told = " ".join(text.split("\0")).strip()
    if not told:
        raise TacitError("an entry must say something.")
    if len(told) > LONGEST:
        raise TacitError(f"an entry of {len(told)} characters is longer than {LONGEST}.")
    return told


def normalised(vectors: np.ndarray) -> np.ndarray:
    """To length 1; a vector of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def _row(ids: Sequence[int], number: int) -> int | None:
    """Where it is in ids that ascend."""
    row = bisect_left(ids, number)
    return row if row < len(ids) and ids[row] == number else None
