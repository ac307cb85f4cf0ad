"""Greedy merging of large corpora: the same procedure as `merging.merge_few`, on the columns of `segmentation_columns`.

Each run of skills that occurs has a number, a *node* (`runs`). After a merge only the columns that hold the new phrase are cut
anew. `_last_TN` is the length of the phrase that ends there in the segmentation, and 0 where none does.

What a phrase saves in a column where it occurs once is known without a dynamic programme: `before` its place, one, and
`after` it, against what the column takes now. Only where it occurs more often, and could decide, has it to be tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, groupby

import numpy as np

from tacit.companions.dictionary.ledger import Ledger, rank
from tacit.companions.dictionary.runs import Runs
from tacit.companions.dictionary.segmentation import Dictionary, Phrase
from tacit.companions.dictionary.segmentation_columns import (
    NEVER,
    count_type,
    longest_last,
    segment_ends,
    shortest_after,
    shortest_before,
)


def merge_many(weights: Mapping[Phrase, int], skills: tuple[str, ...], max_phrase: int) -> tuple[Dictionary, Counter[Phrase]]:
    """As `merge_few`, phrase for phrase; made for thousands of sequences."""
    columns, ledger = Columns(weights, skills, max_phrase), Ledger(len(skills), max_phrase)
    merged: list[Phrase] = []
    while (phrase := _next_phrase(columns, ledger, len(skills) + len(merged))) is not None:
        merged.append(phrase)
    return Dictionary(skills, tuple(merged), max_phrase), columns.uses()


def _next_phrase(columns: Columns, ledger: Ledger, size: int) -> Phrase | None:
    """The first pair in rank that pays, added; None where none does."""
    needed = [ledger.least_saving(columns.segments, size, length) for length in range(ledger.max_phrase + 1)]
    for count, node, a, b in columns.candidates(np.array(needed)):
        together = count if a != b else (count + 1) // 2  # in a run a a a the two pairs overlap
        if together >= needed[len(a + b)] or columns.saves(node, needed[len(a + b)]):
            columns.add(node)
            return a + b
    return None


class Columns:
    """A corpus under a growing code: which pairs stand together, what one more phrase would save."""

    def __init__(self, weights: Mapping[Phrase, int], skills: tuple[str, ...], max_phrase: int) -> None:
        self._skills, self._longest = skills, max_phrase
        self._weights_N = np.fromiter(weights.values(), np.int64, len(weights))
        self._lengths_N = np.fromiter(map(len, weights), np.int64, len(weights))
        number = {skill: i for i, skill in enumerate(skills)}
        flat = np.fromiter(map(number.__getitem__, chain.from_iterable(weights)), np.int64, int(self._lengths_N.sum()))
        rows, width = int(self._lengths_N.max()), len(self._lengths_N)
        self._runs = Runs(flat, self._lengths_N, self._weights_N, len(skills), max_phrase)
        counts = count_type(rows)
        self._cost_TLN = np.full((rows, max_phrase, width), NEVER[counts], counts)
        self._cost_TLN[:, 0] = 1
        self._before_TN = np.repeat(np.arange(rows + 1, dtype=counts)[:, None], width, axis=1)
        self._after_TN = np.zeros((rows + max_phrase, width), counts)
        self._after_is_old_N = np.ones(width, bool)
        self._segments_N = self._lengths_N.copy()
        self._last_TN = np.zeros((rows + 1, width), np.int16)
        self._cut(np.arange(width), self._cost_TLN, self._before_TN)
        self._in_code = np.zeros(len(self._runs.occurrences), bool)
        self._floor_L = np.full(max_phrase + 1, np.iinfo(np.int64).max)
        """by length, how often a run must occur to be watched: the others have not been worth a look yet"""
        self._watched = Watched(self._runs, np.zeros(0, np.int64), width)

    @property
    def segments(self) -> int:
        return int(self._segments_N @ self._weights_N)

    def candidates(self, needed: np.ndarray) -> Iterator[tuple[int, int, Phrase, Phrase]]:
        """(count, node, a, b) of the pairs whose phrase occurs often enough to pay, best rank first."""
        if (needed < self._floor_L).any():
            self._floor_L = needed * 3 // 4
            often = self._runs.occurrences >= self._floor_L[self._runs.length_of]
            self._watched = Watched(self._runs, np.flatnonzero(often & (self._runs.length_of > 1)), len(self._lengths_N))
        nodes = self._watched.nodes
        could_pay = (self._runs.occurrences[nodes] >= needed[self._runs.length_of[nodes]]) & ~self._in_code[nodes]
        pairs_PL = self._watched.pairs(self._last_TN, self._longest) * could_pay[:, None]
        which, splits = np.nonzero(pairs_PL)
        nodes, counts = nodes[which], pairs_PL[which, splits]
        by_count = np.argsort(-counts, kind="stable")
        for count, tied in groupby(by_count.tolist(), key=counts.tolist().__getitem__):
            found = []
            for i in tied:
                phrase = self._spelled(nodes[i])
                found.append((count, int(nodes[i]), phrase[: splits[i]], phrase[splits[i] :]))
            yield from sorted(found, key=lambda pair: rank(count, pair[2], pair[3]))

    def saves(self, node: int, needed: int) -> bool:
        """Whether with this phrase in C the corpus takes fewer segments, by at least as many as needed."""
        row, column, alone = self._runs.places_of(node)
        width = len(self._lengths_N)
        begin, weights = row * width + column, self._weights_N.take(column)
        end = begin + self._runs.length_of[node] * width
        # No path from one use to the next is shorter than `before` there minus `before` here; summed along a sequence, this
        # leaves for each use at most what it saves from its own beginning to its own end.
        before = self._before_TN.take(begin)
        at_most = np.maximum(self._before_TN.take(end) - before - 1, 0) * weights
        if at_most.sum() < needed:
            return False
        self._refresh_after()
        through = before + 1 + self._after_TN.take(end)
        saved = int((np.maximum(self._segments_N.take(column) - through, 0) * weights)[alone].sum())
        if saved >= needed or saved + int(at_most[~alone].sum()) < needed:
            return saved >= needed
        several = np.unique(column[~alone])
        before_Tn = shortest_before(self._costs_with(node, several))
        now_n = before_Tn[self._lengths_N[several], np.arange(len(several))]
        return saved + int((self._segments_N[several] - now_n) @ self._weights_N[several]) >= needed

    def add(self, node: int) -> None:
        """Put the phrase into C and cut anew every column that holds it."""
        row, column, _ = self._runs.places_of(node)
        self._cost_TLN[row, self._runs.length_of[node] - 1, column] = 1
        columns = np.unique(column)
        cost_TLn = self._cost_TLN.take(columns, axis=2)  # [:, :, columns] would not keep rows together in memory
        before_Tn = shortest_before(cost_TLn)
        self._in_code[node] = True
        self._before_TN[:, columns] = before_Tn
        self._after_is_old_N[columns] = True
        self._segments_N[columns] = before_Tn[self._lengths_N[columns], np.arange(len(columns))]
        self._cut(columns, cost_TLn, before_Tn)

    def uses(self) -> Counter[Phrase]:
        """How often each phrase stands in the segmented corpus."""
        end, column = np.nonzero(self._last_TN)
        length = self._last_TN[end, column].astype(np.int64)
        counts = np.bincount(self._runs.node_LNT[length - 1, column, end - length], self._weights_N[column])
        return Counter({self._spelled(n): int(counts[n]) for n in np.flatnonzero(counts).tolist()})

    def _costs_with(self, node: int, columns: np.ndarray) -> np.ndarray:
        """What phrases cost in these columns once this one is in C."""
        length = self._runs.length_of[node]
        cost_TLn = self._cost_TLN.take(columns, axis=2)
        row, column, _ = self._runs.places_of(node)
        here = np.searchsorted(columns, column)
        known = columns[np.minimum(here, len(columns) - 1)] == column  # the columns may be some of those it occurs in
        cost_TLn[row[known], length - 1, here[known]] = 1
        return cost_TLn

    def _refresh_after(self) -> None:
        columns = np.flatnonzero(self._after_is_old_N)
        if len(columns):
            self._after_TN[:, columns] = shortest_after(self._cost_TLN.take(columns, axis=2), self._lengths_N[columns])
            self._after_is_old_N[columns] = False

    def _cut(self, columns: np.ndarray, cost_TLn: np.ndarray, before_Tn: np.ndarray) -> None:
        """Segment these columns."""
        last_Tn = longest_last(cost_TLn, before_Tn)
        self._last_TN[:, columns] = last_Tn * segment_ends(last_Tn, self._lengths_N[columns], self._longest)

    def _spelled(self, node: int) -> Phrase:
        return tuple(self._skills[i] for i in self._runs.spelled(node))


class Watched:
    """Some nodes, with all the places where they end: how often each is now cut into just two phrases, and where."""

    def __init__(self, runs: Runs, nodes: np.ndarray, width: int) -> None:
        row, column, self._which = runs.places_of_all(nodes)
        self.nodes, self._width, self._length = nodes, width, runs.length_of[nodes][self._which]
        self._end, self._weights = (row + self._length) * width + column, runs.weights_N[column]

    def pairs(self, last_TN: np.ndarray, longest: int) -> np.ndarray:
        """Adjacent pairs (a, b) with a∘b the node, by node and length of a."""
        second = last_TN.take(self._end)
        first = last_TN.take(self._end - second.astype(np.int64) * self._width)
        found = np.flatnonzero((first > 0) & (first + second == self._length))
        pair = self._which[found] * longest + first[found]
        counts = np.bincount(pair, self._weights[found], len(self.nodes) * longest)
        return counts.astype(np.int64).reshape(-1, longest)
