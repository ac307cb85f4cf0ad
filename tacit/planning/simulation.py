"""Discrete-event simulation of rollouts and updates with unequal episodes.

With overlap k an episode may start k updates before its use. In order: a batch starts when the last one is finished, and k
batches may be ahead. Gathered: a finished world starts a new episode; the learner takes the oldest N finished ones, and waits
only for those that would become too old. A dead server's requests go to the others, and it returns after `restart_s`. A dead
world ends its episode, which is counted and not trained on. The result depends on the seed alone.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from tacit.core.errors import TacitError
from tacit.planning.timing import Server
from tacit.planning.workload import Workload


@dataclass(frozen=True)
class Scenario:
    work: Workload
    server: Server
    servers: int
    update_s: float
    """of a batch with the mean number of tokens; others in proportion"""
    push_s: float = 0.0
    overlap: int = 0
    gathered: bool = False
    worlds: int = 0
    """concurrent episodes; 0 is a whole batch"""
    world_workers: int = 0
    """concurrent world steps; 0 is all"""
    server_life_s: float = 0.0
    """mean time until a server dies; 0 is never"""
    restart_s: float = 60.0
    world_deaths: float = 0.0
    """share of turns in which the world dies"""

    def __post_init__(self) -> None:
        if self.servers < 1 or self.overlap < 0 or min(self.update_s, self.push_s, self.server_life_s, self.restart_s) < 0:
            raise TacitError(f"a scene needs at least one server and no negative times or overlap: {self}.")
        if not 0 <= self.world_deaths < 1:
            raise TacitError(f"world_deaths = {self.world_deaths} must be at least 0 and below 1.")


@dataclass
class Outcome:
    """Means over the iterations after the first k + 1, in which the pipeline fills."""

    iteration_s: float
    ranks_wait: float
    """share of time in which the learner neither updates nor pushes"""
    servers_wait: float
    """share of time in which a server is idle, mean over servers"""
    rows: float
    """mean rows per server"""
    staleness: float
    """mean updates between an episode's start and its use"""
    oldest: int
    iterations: list[float] = field(default_factory=list)
    server_deaths: int = 0
    world_deaths: int = 0
    turns: int = 0


ROUNDING = 1e-6
"""tolerance of a server's clock, in tokens"""


@dataclass(slots=True)
class Row:
    number: int
    turns: list[tuple[float, float]]
    begun: int
    """version of the weights at its start"""
    turn: int = 0
    server: int = -1
    dies: bool = False


@dataclass(slots=True)
class SimulatedServer:
    """A server whose rows share it equally. Its clock counts the tokens of a row that was always there, and stops during
    prefill and weight updates; a row is done when the clock has advanced by its tokens."""

    speed: Server
    since: float = 0.0
    clock: float = 0.0
    paused: float = 0.0
    """end of the current prefill or weight update"""
    writing: list[tuple[float, int]] = field(default_factory=list)
    """heap of (clock at the end, episode)"""
    load: int = 0
    """episodes assigned to this server"""
    alive: bool = True
    stamp: int = 0
    """number of the newest end event; older ones are ignored"""
    busy: float = 0.0
    row_seconds: float = 0.0

    def advance(self, now: float) -> None:
        if self.writing:
            start = min(max(self.since, self.paused), now)
            self.clock += (now - start) / self.speed.step_s(len(self.writing))
            self.busy += now - self.since
            self.row_seconds += (now - self.since) * len(self.writing)
        self.since = now

    def pause(self, now: float, seconds: float) -> None:
        """For so long, after any other pause."""
        self.advance(now)
        self.paused = max(self.paused, now) + seconds


ARRIVES, WRITES, LEARNT, PUSHED, DIES, BACK = range(6)


class Simulation:
    def __init__(self, scene: Scenario, seed: int = 0) -> None:
        self.scene, self.draw = scene, np.random.default_rng(seed)
        self.now, self.version, self.count, self.begun = 0.0, 0, 0, 0
        self.events: list[tuple[float, int, int, int, int]] = []
        """heap of (time, number, kind, who, stamp)"""
        self.stations = [SimulatedServer(scene.server) for _ in range(scene.servers)]
        self.rows: dict[int, Row] = {}
        self.finished: list[tuple[int, int, float]] = []
        """heap of (version at the start, number, tokens)"""
        self.young: Counter[int] = Counter()
        """running episodes by the version at their start"""
        self.parked: deque[int] = deque()
        """episodes waiting for any live server"""
        self.free_workers = [0.0] * scene.world_workers
        self.driver_free = self.learnt_s = self.busy_from = 0.0
        self.learning, self.dirty = False, set[int]()
        self.ends, self.stale, self.lost, self.turns_done = list[float](), list[int](), [0, 0], 0
        self.measured = [[(float(p), float(c)) for p, c in turns] for turns in scene.work.measured]
        self.by_load = [(0, number) for number in range(scene.servers)]
        """heap of (episodes, server); stale entries are skipped"""

    def run(self, iterations: int) -> Outcome:
        """Run until so many updates are pushed."""
        scene = self.scene
        warm = scene.overlap + 1
        if iterations <= warm:
            raise TacitError(
                f"{iterations} iterations are too few to measure with overlap {scene.overlap}: at least {warm + 1}."
            )
        if scene.server_life_s:
            for number in range(scene.servers):
                self._at(self.draw.exponential(scene.server_life_s), DIES, number)
        self._begin()
        before = (0.0, 0.0, 0.0, 0.0)
        while self.version < iterations:
            for number in self.dirty:  # servers whose rows changed: schedule their next end event
                station = self.stations[number]
                station.stamp += 1
                if station.writing:
                    left = max(0.0, station.writing[0][0] - station.clock) * station.speed.step_s(len(station.writing))
                    self._at(max(self.now, station.paused) + left, WRITES, number, station.stamp)
            self.dirty.clear()
            if not self.events:
                raise TacitError("the simulation stands still: nobody has anything left to do.")
            self.now, _, kind, who, stamp = heapq.heappop(self.events)
            self._handle(kind, who, stamp)
            if kind == PUSHED and self.version == warm:
                before = self._marks()
        span, learnt, busy, rows = (b - a for a, b in zip(before, self._marks(), strict=True))
        lengths = np.diff(self.ends[warm - 1 :])
        return Outcome(
            iteration_s=float(lengths.mean()),
            ranks_wait=max(0.0, 1 - learnt / span),
            servers_wait=max(0.0, 1 - busy / (span * scene.servers)),
            rows=rows / (span * scene.servers),
            staleness=float(np.mean(self.stale)) if self.stale else 0.0,
            oldest=max(self.stale, default=0),
            iterations=[float(seconds) for seconds in lengths],
            server_deaths=self.lost[0],
            world_deaths=self.lost[1],
            turns=self.turns_done,
        )

    def _at(self, time: float, kind: int, who: int, stamp: int = 0) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, kind, who, stamp))

    def _handle(self, kind: int, who: int, stamp: int) -> None:
        station = self.stations[who] if kind in (WRITES, DIES, BACK) else self.stations[0]
        if kind == WRITES and stamp == station.stamp:
            station.advance(self.now)
            station.clock, done = max(station.clock, station.writing[0][0]), []
            while station.writing and station.writing[0][0] <= station.clock + ROUNDING:
                done.append(heapq.heappop(station.writing)[1])
            for episode in done:
                self._in_the_world(episode)
            self.dirty.add(who)
        elif kind == ARRIVES:
            self._next_turn(who)
        elif kind == LEARNT:
            for station in self.stations:
                station.pause(self.now, self.scene.push_s)
            self.dirty |= set(range(len(self.stations)))
            self._at(self.now + self.scene.push_s, PUSHED, 0)
        elif kind == PUSHED:
            self.version += 1
            self.learning = False
            self.learnt_s += self.now - self.busy_from
            self.ends.append(self.now)
            self._begin()
            self._learn()
        elif kind == DIES:
            station.advance(self.now)
            again = sorted(number for _, number in station.writing)
            station.writing.clear()
            station.alive, station.load, station.paused = False, 0, self.now
            self.dirty.add(who)
            self.lost[0] += 1
            for row in self.rows.values():
                if row.server == who:
                    row.server = -1
            self._at(self.now + self.scene.restart_s, BACK, who)
            for episode in again:
                self._hand_in(self.rows[episode])
        elif kind == BACK:
            station.advance(self.now)
            station.alive = True
            self._load(who, 0)
            self._at(self.now + self.draw.exponential(self.scene.server_life_s), DIES, who)
            while self.parked:
                self._hand_in(self.rows[self.parked.popleft()])

    def _begin(self) -> None:
        """Start as many episodes as allowed."""
        scene, batch = self.scene, self.scene.work.episodes
        worlds = scene.worlds or batch
        if scene.gathered:
            may = (self.version + scene.overlap + 1) * batch + self.lost[1] - self.begun
        else:
            ahead = self.begun // batch - self.version
            through = not self.rows
            may = batch - self.begun % batch if self.begun % batch or (through and ahead <= scene.overlap) else 0
        room = scene.servers * scene.server.slots - len(self.rows)
        for _ in range(min(may, worlds - len(self.rows), room)):
            kind = int(self.draw.integers(len(self.measured))) if len(self.measured) > 1 else 0
            row = Row(self.begun, self.measured[kind], self.version)
            if self.scene.world_deaths:
                deadly = np.flatnonzero(self.draw.random(len(row.turns)) < self.scene.world_deaths)
                if len(deadly):
                    row.turns, row.dies = row.turns[: deadly[0] + 1], True
            self.rows[self.begun] = row
            self.young[self.version] += 1
            self.begun += 1
            self._hand_in(row)

    def _hand_in(self, row: Row) -> None:
        """Send the next turn to the episode's server, or to the least loaded live one."""
        if row.server < 0 or not self.stations[row.server].alive:
            while self.by_load:
                load, row.server = self.by_load[0]
                if self.stations[row.server].alive and self.stations[row.server].load == load:
                    break
                heapq.heappop(self.by_load)
            else:
                row.server = -1
                self.parked.append(row.number)
                return
            self._load(row.server, 1)
        station, (prompt, completion) = self.stations[row.server], row.turns[row.turn]
        station.pause(self.now, prompt / station.speed.prefill_rate)
        heapq.heappush(station.writing, (station.clock + completion, row.number))
        self.dirty.add(row.server)

    def _load(self, number: int, change: int) -> None:
        station = self.stations[number]
        station.load += change
        heapq.heappush(self.by_load, (station.load, number))

    def _in_the_world(self, episode: int) -> None:
        """The driver parses the answer, then a world worker computes the step, each when free."""
        self.turns_done += 1
        took, driving = self.scene.work.world_s, self.scene.work.driver_s
        if took == 0 and driving == 0:
            self._next_turn(episode)
            return
        start = self.driver_free = max(self.now, self.driver_free) + driving
        if self.free_workers:
            start = max(start, self.free_workers[0])
            heapq.heapreplace(self.free_workers, start + took)
        self._at(start + took, ARRIVES, episode)

    def _next_turn(self, episode: int) -> None:
        row = self.rows[episode]
        row.turn += 1
        if row.turn < len(row.turns):
            self._hand_in(row)
            return
        del self.rows[episode]
        if row.server >= 0:
            self._load(row.server, -1)
        self.young[row.begun] -= 1
        if not self.young[row.begun]:
            del self.young[row.begun]
        if row.dies:
            self.lost[1] += 1
        else:
            heapq.heappush(self.finished, (row.begun, row.number, sum(p + c for p, c in row.turns)))
        self._begin()
        self._learn()

    def _learn(self) -> None:
        """Take a batch, if there is one."""
        scene, batch = self.scene, self.scene.work.episodes
        if self.learning:
            return
        if scene.gathered:
            too_old = any(version <= self.version - scene.overlap for version in self.young)
            if too_old or len(self.finished) < batch:
                return
            size = batch
        else:
            last, first_under_way = (self.version + 1) * batch, next(iter(self.rows), self.begun)
            if self.begun < last or first_under_way < last:
                return
            size = sum(number < last for _, number, _ in self.finished)
        taken = [heapq.heappop(self.finished) for _ in range(size)]
        self.stale += [self.version - begun for begun, _, _ in taken]
        self.learning, self.busy_from = True, self.now
        share = sum(tokens for _, _, tokens in taken) / scene.work.tokens
        self._at(self.now + scene.update_s * share, LEARNT, 0)

    def _marks(self) -> tuple[float, float, float, float]:
        """(time, of it learning, busy time of servers, their rows times seconds) so far"""
        for station in self.stations:
            station.advance(self.now)
        busy, rows = (sum(getattr(station, name) for station in self.stations) for name in ("busy", "row_seconds"))
        return self.now, self.learnt_s, busy, rows


def simulate(scene: Scenario, iterations: int = 6, seed: int = 0) -> Outcome:
    return Simulation(scene, seed).run(iterations)
