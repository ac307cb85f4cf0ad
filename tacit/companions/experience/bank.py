"""The experience bank: durable on disk (disk.py), searched in memory (matrix.py).

A write returns when it is committed: what was acknowledged outlives a killed process. Writers take turns; readers never wait,
and see every change whole or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tacit.companions.experience.disk import Disk, Happened
from tacit.companions.experience.entries import LONGEST, Call, Entry, Origin, Usage
from tacit.companions.experience.matrix import Matrix, Snapshot, normalised
from tacit.core.errors import TacitError
from tacit.core.text import is_unicode

CAPACITY = 20_000
FORMAT = "1"


class Refused(TacitError):
    """An entry that no bank would keep."""


class Bank:
    """`embedder` names the model that made the vectors; a bank of another one is refused."""

    def __init__(self, path: Path | None, embedder: str, dimensions: int, capacity: int = CAPACITY) -> None:
        self.path, self.embedder, self.dimensions, self.capacity = path, embedder, dimensions, capacity
        self._disk, self._matrix = Disk(path), Matrix(dimensions)
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
                    made.append((self._disk.add(checked(text), vector_D, origin, call), vector_D))
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
        events = [Happened(number, kind, step, task, success) for number in ids]
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
        with self._writing, closing(Disk(path, only_read=True)) as copy:
            self._read(copy)
            self._disk.restore_from(copy)
            self._hold(self._read(self._disk))  # once more: a run may be writing into what is copied

    def _read(self, disk: Disk) -> _Known:
        """What is there, and nothing else."""
        disk.check(self._told)
        living, matrix = list(disk.living()), Matrix(self.dimensions)
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
            raise Refused(
                f"a vector of shape {vector_D.shape} cannot go into a bank of {self.dimensions} finite dimensions "
                f"({self.embedder})."
            )
        return normalised(vector_D)


class _Known(NamedTuple):
    """What a bank has in memory of what is on disk."""

    entries: dict[int, Entry]
    usage: dict[int, Usage]
    departed: list[int]
    matrix: Matrix


def _count(event: Happened, usages: Mapping[int, Usage]) -> None:
    usage = usages.get(event.entry)
    if usage is None:  # it has gone since; what happened to it is still on disk
        return
    if event.kind == "retrieved":
        usage.retrieved, usage.last_retrieved = usage.retrieved + 1, event.step
    elif event.kind == "trained":
        usage.trained, usage.last_trained = usage.trained + 1, event.step
    elif event.kind == "guided":
        usage.wins, usage.losses = usage.wins + bool(event.success), usage.losses + (not event.success)


def checked(text: str) -> str:
    told = " ".join(text.split("\0")).strip()
    if not told:
        raise Refused("an entry must say something.")
    if len(told) > LONGEST:
        raise Refused(f"an entry of {len(told)} characters is longer than {LONGEST}.")
    if not is_unicode(told):
        raise Refused(f"an entry with half a character (a lone surrogate) in it: {told!r:.60}.")
    return told
