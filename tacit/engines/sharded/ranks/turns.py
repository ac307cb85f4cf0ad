"""Who computes what: micro-batches go round the ranks, and every rank runs as many passes as every other.

All ranks cut the rows alike. In turn t rank r takes part t·N + r; where there is none left it computes the last part once more,
for nothing: the others could not gather a single weight without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def budget_for(ranks: int, lengths: np.ndarray, token_budget: int) -> int:
    """Tokens in one micro-batch, so that there is one for every rank where there are rows enough."""
    return max(1, min(token_budget, -(-int(lengths.sum()) // ranks)))


def turns(parts: Sequence[np.ndarray], rank: int, ranks: int) -> Iterator[tuple[np.ndarray, bool, bool]]:
    """(rows, whether they count, whether this is the last turn)"""
    rounds = -(-len(parts) // ranks)
    for turn in range(rounds):
        at = turn * ranks + rank
        counts = at < len(parts)
        yield parts[at if counts else -1], counts, turn == rounds - 1
