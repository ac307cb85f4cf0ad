"""Greedy merging of large corpora: the same procedure as `merging.merge_few`, on columns of integers.

A sequence is a column, all columns end together in the last row, so that one pass from the last row up is the dynamic
programme of every sequence at once. Each run of two to L skills that occurs has a number, a *node*; node[l − 1, t, n] is
the one that begins in row t of column n with length l. After a merge only the columns that hold the new phrase are cut anew.

    cost_TLN      1 where the phrase of that length beginning there is in C, otherwise NEVER
    fewest_TN     phrases needed from there to the end
    length_TN     length of the phrase that begins there in the segmentation, 0 inside of one
    pairs         adjacent pairs (a, b) by node of a∘b and length of a
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain

import numpy as np

from tacit.companions.merging import Ledger, rank
from tacit.companions.segmentation import Dictionary, Phrase

NEVER = np.int32(1 << 29)


def merge_many(weights: Mapping[Phrase, int], skills: tuple[str, ...], max_phrase: int) -> tuple[Dictionary, Counter[Phrase]]:
    """As `merge_few`, phrase for phrase; made for thousands of sequences."""
    columns, ledger = Columns(weights, skills, max_phrase), Ledger(len(skills), max_phrase)
    merged: list[Phrase] = []
    while (phrase := _next_phrase(columns, ledger, len(skills) + len(merged))) is not None:
        merged.append(phrase)
    return Dictionary(skills, tuple(merged), max_phrase), columns.uses()


def _next_phrase(columns: Columns, ledger: Ledger, size: int) -> Phrase | None:
    """The first pair in rank that pays, added; None where none does."""
    segments = columns.segments
    needed = [ledger.least_saving(segments, size, length) for length in range(ledger.max_phrase + 1)]
    for count, node, a, b in columns.candidates(np.array(needed)):
        length = len(a + b)
        surely = count if a != b else (count + 1) // 2  # in a run a a a the two pairs overlap
        if surely >= needed[length] or ledger.pays(segments, size, columns.try_out(node), length):
            columns.add(node)
            return a + b
    return None


class Columns:
    def __init__(self, weights: Mapping[Phrase, int], skills: tuple[str, ...], max_phrase: int) -> None:
        self._skills, self._longest = skills, max_phrase
        self._weights_N = np.fromiter(weights.values(), np.int64, len(weights))
        lengths_N = np.fromiter(map(len, weights), np.int64, len(weights))
        rows, width = int(lengths_N.max()), len(lengths_N)
        self._first_N = rows - lengths_N
        number = {skill: i for i, skill in enumerate(skills)}
        flat = np.fromiter(map(number.__getitem__, chain.from_iterable(weights)), np.int64, int(lengths_N.sum()))
        column = np.repeat(np.arange(width), lengths_N)
        row = np.arange(len(flat)) - np.repeat(np.cumsum(lengths_N) - lengths_N, lengths_N) + self._first_N[column]
        skill_TN = np.full((rows, width), -1, np.int64)
        skill_TN[row, column] = flat
        self._number_nodes(skill_TN)
        self._cost_TLN = np.full((rows, max_phrase, width), NEVER, np.int32)
        self._cost_TLN[:, 0] = 1
        self._fewest_TN = np.zeros((rows + max_phrase, width), np.int32)
        self._length_TN = (skill_TN >= 0).astype(np.int64)
        self._pairs = np.zeros((len(self._occurrences), max_phrase), np.int64)
        self._in_code = np.zeros(len(self._occurrences), bool)
        self._segments_N = lengths_N
        self._count_pairs(slice(None), +1)

    def _number_nodes(self, skill_TN: np.ndarray) -> None:
        """Dense numbers, shorter runs first: of length l, run and next skill become the number of length l + 1."""
        (rows, width), alphabet = skill_TN.shape, len(self._skills)
        node_LTN = np.full((self._longest, rows, width), -1, np.int64)
        node_LTN[0] = skill_TN
        length_of, occurrences = [np.ones(alphabet, np.int64)], [np.zeros(alphabet, np.int64)]
        """single skills are in every dictionary: they never occur as candidates"""
        known = alphabet
        self._place_of = [np.zeros((alphabet, 2), np.int64)]
        for length in range(2, min(self._longest, rows) + 1):
            shorter = node_LTN[length - 2, : rows - length + 1]
            row, column = np.nonzero(shorter >= 0)
            codes = shorter[row, column] * alphabet + skill_TN[row + length - 1, column]
            values, where, inverse = np.unique(codes, return_index=True, return_inverse=True)
            node_LTN[length - 1, row, column] = known + inverse
            counts = np.zeros(len(values), np.int64)
            np.add.at(counts, inverse, self._weights_N[column])
            length_of.append(np.full(len(values), length))
            occurrences.append(counts)
            self._place_of.append(np.stack([row[where], column[where]], axis=1))
            known += len(values)
        self._node_LTN = node_LTN
        self._length_of, self._occurrences = np.concatenate(length_of), np.concatenate(occurrences)
        self._example = np.concatenate(self._place_of)
        self._skill_TN = skill_TN

    @property
    def segments(self) -> int:
        return int(self._segments_N @ self._weights_N)

    def candidates(self, needed: np.ndarray) -> list[tuple[int, int, Phrase, Phrase]]:
        """(count, node, a, b) of the pairs whose phrase occurs often enough to pay, best rank first."""
        could_pay = np.flatnonzero((self._occurrences >= needed[self._length_of]) & (self._occurrences > 0) & ~self._in_code)
        counts = self._pairs[could_pay]
        found = []
        for i, split in zip(*np.nonzero(counts), strict=True):
            phrase = self._spelled(could_pay[i])
            found.append((int(counts[i, split]), int(could_pay[i]), phrase[:split], phrase[split:]))
        return sorted(found, key=lambda pair: rank(pair[0], pair[2], pair[3]))

    def try_out(self, node: int) -> int:
        """How many segments the corpus would save if this phrase were in C."""
        columns, cost_TLn = self._costs_with(node)
        fewest_Tn = shortest(cost_TLn)
        after_n = fewest_Tn[self._first_N[columns], np.arange(len(columns))]
        return int((self._segments_N[columns] - after_n) @ self._weights_N[columns])

    def add(self, node: int) -> None:
        """Put the phrase into C and cut anew every column that holds it."""
        columns, cost_TLn = self._costs_with(node)
        self._cost_TLN[:, :, columns] = cost_TLn
        self._in_code[node] = True
        fewest_Tn = shortest(cost_TLn)
        self._count_pairs(columns, -1)
        first_n = self._first_N[columns]
        self._segments_N[columns] = fewest_Tn[first_n, np.arange(len(columns))]
        self._length_TN[:, columns] = cut(cost_TLn, fewest_Tn, first_n)
        self._count_pairs(columns, +1)

    def uses(self) -> Counter[Phrase]:
        row, column = np.nonzero(self._length_TN)
        node = self._node_LTN[self._length_TN[row, column] - 1, row, column]
        counts = np.zeros(len(self._occurrences), np.int64)
        np.add.at(counts, node, self._weights_N[column])
        return Counter({self._spelled(n): int(counts[n]) for n in np.flatnonzero(counts)})

    def _costs_with(self, node: int) -> tuple[np.ndarray, np.ndarray]:
        """The columns that hold a phrase, and what phrases cost there once it is in C."""
        length = self._length_of[node]
        here_TN = self._node_LTN[length - 1] == node
        columns = np.flatnonzero(here_TN.any(axis=0))
        cost_TLn = self._cost_TLN[:, :, columns]
        cost_TLn[:, length - 1][here_TN[:, columns]] = 1
        return columns, cost_TLn

    def _count_pairs(self, columns: np.ndarray | slice, sign: int) -> None:
        length_Tn, weights_n = self._length_TN[:, columns], self._weights_N[columns]
        row, column = np.nonzero(length_Tn)
        first = length_Tn[row, column]
        follows = row + first < len(length_Tn)
        row, column, first = row[follows], column[follows], first[follows]
        both = first + length_Tn[row + first, column]
        fits = both <= self._longest
        row, column, first, both = row[fits], column[fits], first[fits], both[fits]
        everywhere = np.arange(len(self._weights_N))[columns]
        node = self._node_LTN[both - 1, row, everywhere[column]]
        np.add.at(self._pairs, (node, first), sign * weights_n[column])

    def _spelled(self, node: int) -> Phrase:
        if node < len(self._skills):
            return (self._skills[node],)
        row, column = self._example[node]
        return tuple(self._skills[i] for i in self._skill_TN[row : row + self._length_of[node], column])


def shortest(cost_TLn: np.ndarray) -> np.ndarray:
    """fewest[t] = min over lengths l of cost[t, l] + fewest[t + l], in every column at once; 0 at the end, NEVER beyond."""
    rows, longest, width = cost_TLn.shape
    fewest_Tn = np.full((rows + longest, width), NEVER, np.int32)
    fewest_Tn[rows] = 0
    each = np.empty((longest, width), np.int32)
    for t in range(rows - 1, -1, -1):
        np.add(fewest_Tn[t + 1 : t + 1 + longest], cost_TLn[t], out=each)
        np.minimum.reduce(each, axis=0, out=fewest_Tn[t])
    return fewest_Tn


def cut(cost_TLn: np.ndarray, fewest_Tn: np.ndarray, first_n: np.ndarray) -> np.ndarray:
    """Lengths at the places where phrases begin: of the minimum segmentations, the one with the longest first phrase, ..."""
    rows, longest, width = cost_TLn.shape
    take_Tn = np.ones((rows, width), np.int64)
    for length in range(2, longest + 1):
        best = cost_TLn[:, length - 1] + fewest_Tn[length : length + rows] == fewest_Tn[:rows]
        take_Tn[best] = length
    length_Tn = np.zeros_like(take_Tn)
    row, column = first_n.copy(), np.arange(width)
    while len(row):
        taken = take_Tn[row, column]
        length_Tn[row, column] = taken
        row = row + taken
        inside = row < rows
        row, column = row[inside], column[inside]
    return length_Tn
