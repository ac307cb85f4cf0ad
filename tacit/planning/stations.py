"""One simulated server, and the episodes that it writes for."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from tacit.planning.timing import Server

ROUNDING = 1e-6
"""tokens that the clock of a server may be off by"""


@dataclass(slots=True)
class Row:
    """One episode under way."""

    number: int
    turns: list[tuple[float, float]]
    begun: int
    """version of the weights when it began"""
    turn: int = 0
    server: int = -1
    dies: bool = False


@dataclass(slots=True)
class Station:
    """Rows share a server equally, so one clock does for all: how many tokens a row that was there all along has written. It
    stands still while prompts are read or weights taken; a row is done when it has moved by as many tokens as the row has."""

    speed: Server
    since: float = 0.0
    clock: float = 0.0
    paused: float = 0.0
    """until when it reads prompts or takes weights"""
    writing: list[tuple[float, int]] = field(default_factory=list)
    """heap of (clock at which it is done, episode)"""
    load: int = 0
    """episodes that are played here, writing or not"""
    alive: bool = True
    stamp: int = 0
    """of the newest word on when the next row is done; older ones are not heard"""
    busy: float = 0.0
    row_seconds: float = 0.0

    def advance(self, now: float) -> None:
        if self.writing:
            start = min(max(self.since, self.paused), now)
            self.clock += (now - start) / self.speed.step_s(len(self.writing))
            self.busy += now - self.since
            self.row_seconds += (now - self.since) * len(self.writing)
        self.since = now

    def stop(self, now: float, seconds: float) -> None:
        """Nothing is written for so long, after whatever else it is stopped for."""
        self.advance(now)
        self.paused = max(self.paused, now) + seconds

    def take(self, now: float, number: int, prompt: float, completion: float) -> None:
        self.stop(now, prompt / self.speed.prefill_rate)
        heapq.heappush(self.writing, (self.clock + completion, number))

    def next_done(self, now: float) -> float:
        left = max(0.0, self.writing[0][0] - self.clock) * self.speed.step_s(len(self.writing))
        return max(now, self.paused) + left

    def done(self, now: float) -> list[int]:
        """The episodes whose turn is written now."""
        self.advance(now)
        self.clock = max(self.clock, self.writing[0][0])
        found = []
        while self.writing and self.writing[0][0] <= self.clock + ROUNDING:
            found.append(heapq.heappop(self.writing)[1])
        return found

    def die(self, now: float) -> list[int]:
        """The episodes whose requests are lost."""
        self.advance(now)
        lost = sorted(number for _, number in self.writing)
        self.writing.clear()
        self.alive, self.load, self.paused = False, 0, now
        return lost
