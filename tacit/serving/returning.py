"""Who will be back in a moment. A session that was answered acts in its world and asks again; where that is quick, it is worth
waiting for, since a row of a full batch costs a fraction of one alone.

    away       answered within the last 2·r seconds and not back yet, where r is how long it usually takes to come back
    worth it   as long as more than a quarter as many are away as wait, r is short, and the first has not waited longer than 2·r
               nor longer than PATIENCE_S

One session at a time is never kept: when it asks, nobody is away.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

PATIENCE_S = 0.05
"""the longest that anybody is kept for others to come; whoever usually takes longer is not waited for"""
ENOUGH = 0.25
"""away, for each that waits: fewer are not worth waiting for"""
NEWEST = 0.1
"""what the newest return counts for, in how long it usually takes"""


class Returning:
    """One desk's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answered: deque[float] = deque()
        self._usual_s = 0.0
        self._first: float | None = None
        """when the first of those that wait now came"""

    def came(self) -> None:
        now = self._clock()
        if self._first is None:
            self._first = now
        if self._answered:
            self._take_note(now - self._answered.popleft())

    def answered(self, count: int, left: int) -> None:
        """So many just now; `left` of those that wait have no answer yet."""
        now = self._clock()
        self._answered.extend([now] * count)
        self._first = now if left else None

    def worth_waiting_s(self, waiting: int) -> float:
        """How long it is still worth waiting for others, with so many waiting; 0: not at all."""
        if self._first is None:
            return 0.0
        now, most_s = self._clock(), 2 * self._usual_s
        while self._answered and now - self._answered[0] > most_s:
            self._take_note(now - self._answered.popleft())  # over, or slow: not to be counted on
        if self._usual_s > PATIENCE_S or len(self._answered) <= ENOUGH * waiting:
            return 0.0
        return max(0.0, self._first + min(most_s, PATIENCE_S) - now)

    def _take_note(self, took_s: float) -> None:
        took_s = min(took_s, 1.0)
        self._usual_s += NEWEST * (took_s - self._usual_s) if self._usual_s else took_s
