"""Every run of one to L skills in a corpus has a number; where it occurs and how often."""

from __future__ import annotations

import numpy as np


class Runs:
    """Numbers are dense, shorter runs first: 0 … K − 1 are the single skills; a run and its next skill make a longer one."""

    def __init__(self, flat: np.ndarray, lengths_N: np.ndarray, weights_N: np.ndarray, alphabet: int, longest: int) -> None:
        """`flat` holds the skills of all sequences one after another, as numbers below `alphabet`."""
        width, rows = len(lengths_N), int(lengths_N.max())
        self.weights_N = weights_N
        column = np.repeat(np.arange(width), lengths_N)
        row = np.arange(len(flat)) - np.repeat(np.cumsum(lengths_N) - lengths_N, lengths_N)
        self.node_LNT = np.full((longest, width, rows), -1, np.int64)
        """the run of that length that begins there; −1 where the sequence is too short"""
        skill_NT = self.node_LNT[0]
        skill_NT[column, row] = flat
        times = [np.bincount(flat, minlength=alphabet)]
        places = [np.stack([row, column])[:, np.argsort(flat, kind="stable")]]
        known = alphabet
        for length in range(2, min(longest, rows) + 1):
            column, row = np.nonzero(skill_NT[:, length - 1 :] >= 0)
            code = self.node_LNT[length - 2, column, row] * alphabet + skill_NT[column, row + length - 1]
            order = np.argsort(code, kind="stable")
            column, row, code = column[order], row[order], code[order]
            run = np.cumsum(np.append(False, code[1:] != code[:-1]))  # equal codes lie together
            self.node_LNT[length - 1, column, row] = known + run
            places.append(np.stack([row, column]))
            times.append(np.bincount(run))
            known += len(times[-1])
        self._row, self._column = np.concatenate(places, axis=1)
        self._upto = np.concatenate([[0], np.cumsum(np.concatenate(times))])
        self.length_of = np.repeat(np.arange(1, len(times) + 1), [len(t) for t in times])
        node = np.repeat(np.arange(known), np.diff(self._upto))
        self.occurrences = np.bincount(node, weights_N[self._column], known).astype(np.int64)
        """how often each run occurs, overlapping ones included, weighted"""
        again = (node[1:] == node[:-1]) & (self._column[1:] == self._column[:-1])
        self._alone = ~(np.append(again, False) | np.append(False, again))

    def places_of(self, node: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows and columns where the run begins, column by column, and whether it occurs only once in that column."""
        here = slice(self._upto[node], self._upto[node + 1])
        return self._row[here], self._column[here], self._alone[here]

    def places_of_all(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows and columns where any of the runs begins, and which of them it is, by its place in `nodes`."""
        times = self._upto[nodes + 1] - self._upto[nodes]
        which = np.repeat(np.arange(len(nodes)), times)
        here = np.arange(len(which)) + np.repeat(self._upto[nodes] - (np.cumsum(times) - times), times)
        return self._row[here], self._column[here], which

    def spelled(self, node: int) -> list[int]:
        """The skills of a run, by number."""
        if self.length_of[node] == 1:
            return [int(node)]
        row, column = self._row[self._upto[node]], self._column[self._upto[node]]
        return self.node_LNT[0, column, row : row + self.length_of[node]].tolist()
