"""The living entries and their vectors as one matrix, in order of age: search is exact.

Readers take the matrix as it is at that moment and never wait: additions go behind its end, and whatever changes what is there
makes a new one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.companions.experience.entries import Entry

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
        queries_QD = normalised(np.asarray(vectors_QD, np.float32))
        scores_QN = queries_QD @ self.vectors_ND.T
        beyond = max(0, len(self.entries) - count)
        found = []
        for query_D, scores_N in zip(queries_QD, scores_QN, strict=True):
            least = np.partition(scores_N, beyond)[beyond] - SLACK
            near = np.flatnonzero(scores_N >= least)  # rows are in order of age
            exact = np.round(self.vectors_ND[near].astype(np.float64) @ query_D.astype(np.float64), 9)
            found.append([self.entries[i] for i in near[np.argsort(-exact, kind="stable")[:count]]])
        return found


class Matrix:
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


def normalised(vectors: np.ndarray) -> np.ndarray:
    """To length 1; a vector of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def _row(entries: Sequence[Entry], number: int) -> int | None:
    """Where it is among entries whose ids ascend."""
    row = bisect_left(entries, number, key=lambda entry: entry.id)
    return row if row < len(entries) and entries[row].id == number else None
