"""What is simulated, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tacit.core.errors import TacitError
from tacit.planning.timing import Server
from tacit.planning.workload import Workload


@dataclass(frozen=True)
class Scene:
    """What is simulated."""

    work: Workload
    server: Server
    servers: int
    update_s: float
    """of a batch with the mean number of tokens; others in proportion"""
    push_s: float = 0.0
    overlap: int = 0
    gathered: bool = False
    worlds: int = 0
    """episodes under way at a time; 0 is as many as a batch has"""
    world_workers: int = 0
    """steps of worlds that are computed at a time; 0 is all"""
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
    """share of the time in which the learner neither updates nor pushes"""
    servers_wait: float
    """share of the time in which a server has nothing to do, mean over servers"""
    rows: float
    """mean rows of a server"""
    staleness: float
    """updates between an episode's beginning and its use, mean"""
    oldest: int
    iterations: list[float] = field(default_factory=list)
    server_deaths: int = 0
    world_deaths: int = 0
    turns: int = 0
