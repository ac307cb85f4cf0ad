"""Minimum segmentation of many sequences at once: `Dictionary.segment` on columns of integers.

A sequence is a column, all columns begin in row 0, so that one pass over the rows is the dynamic programme of every one.

    cost_TLn      1 where the phrase of that length beginning there is in C, otherwise NEVER; single skills: 1 in every row
    before_Tn     fewest phrases from the beginning to there          after_Tn   from there to the end
    last_Tn       length of the last phrase of the segmentation that ends there
"""

from __future__ import annotations

import numpy as np

NEVER = {np.dtype(np.int16): 1 << 13, np.dtype(np.int32): 1 << 29}
"""more phrases than any sequence takes, and twice as many still fit the type; the smaller one is the quicker"""


def count_type(rows: int) -> np.dtype:
    """The smallest type that can count the phrases of sequences so long."""
    return np.dtype(np.int16 if rows < NEVER[np.dtype(np.int16)] else np.int32)


def shortest_before(cost_TLn: np.ndarray) -> np.ndarray:
    """before[t] = min over lengths l of before[t − l] + cost[t − l, l], in every column at once."""
    rows, longest, width = cost_TLn.shape
    before_Tn = np.full((rows + longest, width), NEVER[cost_TLn.dtype], cost_TLn.dtype)
    before_Tn[0] = 0
    each = np.empty((longest, width), cost_TLn.dtype)
    reached = [before_Tn[t + 1 : t + 1 + longest] for t in range(rows)]
    for cost_Ln, before_n, reached_Ln in zip(cost_TLn, before_Tn, reached, strict=False):
        np.add(cost_Ln, before_n, each)
        np.minimum(reached_Ln, each, reached_Ln)
    return before_Tn[: rows + 1]


def shortest_after(cost_TLn: np.ndarray, lengths_n: np.ndarray) -> np.ndarray:
    """after[t] = min over lengths l of cost[t, l] + after[t + l]; 0 where a column ends."""
    rows, longest, width = cost_TLn.shape
    after_Tn = np.full((rows + longest, width), NEVER[cost_TLn.dtype], cost_TLn.dtype)
    each = np.empty((longest, width), cost_TLn.dtype)
    ends_T = [lengths_n == t for t in range(rows + 1)]
    after_Tn[rows][ends_T[rows]] = 0
    for t in range(rows - 1, -1, -1):
        np.add(after_Tn[t + 1 : t + 1 + longest], cost_TLn[t], out=each)
        np.minimum.reduce(each, axis=0, out=after_Tn[t])
        after_Tn[t][ends_T[t]] = 0
    return after_Tn


def longest_last(cost_TLn: np.ndarray, before_Tn: np.ndarray) -> np.ndarray:
    """For each end, the length of the last phrase of its segmentation: the longest of those the minimum allows; 0 in row 0."""
    rows, longest, width = cost_TLn.shape
    last_Tn = np.ones((rows + 1, width), np.int16)
    last_Tn[0] = 0
    for length in range(2, min(longest, rows) + 1):
        starts = rows + 1 - length
        best = cost_TLn[:starts, length - 1] + before_Tn[:starts] == before_Tn[length:]
        np.putmask(last_Tn[length:], best, length)
    return last_Tn


def segment_ends(last_Tn: np.ndarray, lengths_n: np.ndarray, longest: int) -> np.ndarray:
    """True where a phrase of the segmentation ends, and in row 0: from the end of each column, one phrase back at a time."""
    rows, width = last_Tn.shape
    back_TLn = last_Tn[:, None] == np.arange(longest, 0, -1, dtype=last_Tn.dtype)[:, None]
    ends_Tn = np.zeros((rows + longest, width), bool)
    ends_Tn[lengths_n + longest, np.arange(width)] = True
    led = np.empty((longest, width), bool)
    for t in range(rows - 1, 0, -1):
        reached_Ln = ends_Tn[t : t + longest]
        np.logical_and(back_TLn[t], ends_Tn[t + longest], led)
        np.logical_or(reached_Ln, led, reached_Ln)
    return ends_Tn[longest:]
