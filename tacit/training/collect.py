"""What a run does in one world: what it trains on there, what it is measured on, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.method import Context, Method
from tacit.core.protocols import Policy, Sampling
from tacit.core.seeds import derive
from tacit.core.types import Group, IterationInfo, Task
from tacit.core.world import Environment
from tacit.evaluation.panels import Panel, choose_panel
from tacit.rollout.episodes import NO_OBSERVER, RolloutObserver, rollout_groups
from tacit.rollout.workers import ProcessLauncher, RayLauncher, WorkerPool
from tacit.rollout.worlds import InProcessPool, WorldPool
from tacit.training.settings import TrainSettings


@dataclass(frozen=True)
class TaskSets:
    """What a run trains on and what it is measured on."""

    training: Sequence[Task]
    panel: Panel
    further: tuple[Panel, ...] = ()
    """measured after each stage only"""
    notes: tuple[str, ...] = ()
    """which of these there is nothing of on this machine"""

    @classmethod
    def of(cls, world: Environment, settings: TrainSettings) -> TaskSets:
        """Found before anything is written, so that a world without its data costs nothing."""
        families, measured = settings.family_names, settings.evaluation
        if not world.playable:
            return cls((), Panel(f"{world.name}/none", ()), notes=(f"{world.summary}: nothing is measured",))
        panel = choose_panel(world, measured.split, measured.tasks, families, measured.panel)
        tasks = world.tasks_of(settings.split, settings.tasks, settings.seed, families)
        if not tasks:
            of = f" of {', '.join(families)}" if families else ""
            raise TacitError(f"split {settings.split!r} of world {world.name!r} has no tasks{of} here.")
        further, notes = [], []
        for split, count, may_be_absent in measured.further_panels:
            try:
                further.append(choose_panel(world, split, count or world.panel_size(split, measured.tasks), families))
            except TacitError as error:
                if not may_be_absent:
                    raise
                notes.append(f"not measured on {split}: {error}")
        return cls(tasks, panel, tuple(further), tuple(notes))


@dataclass(frozen=True)
class WorldSetup:
    world: Environment
    method: Method
    """built for this world"""
    settings: TrainSettings
    """the run's, with what was said of this world alone"""
    tasks: TaskSets
    share: float = 1.0
    """of the groups of an iteration"""

    @classmethod
    def of(cls, world: Environment, method: Method, settings: TrainSettings, share: float = 1.0) -> WorldSetup:
        return cls(world, method, settings, TaskSets.of(world, settings), share)

    @property
    def name(self) -> str:
        return self.world.name

    @property
    def max_steps(self) -> int:
        return self.settings.max_steps or self.world.max_steps

    @property
    def max_tokens(self) -> int:
        return completion_limit(self.settings, self.method.context, self.world)


def make_worlds(world: Environment, settings: TrainSettings) -> WorldPool:
    processes = settings.workers or (4 if world.slow or settings.workers_at else 0)
    if not processes:
        return InProcessPool(world.make, settings.world_timeout_s)
    where = RayLauncher(settings.workers_at, processes) if settings.workers_at else ProcessLauncher()
    return WorkerPool(world.make, processes, settings.world_timeout_s, where=where)


def completion_limit(settings: TrainSettings, context: Context, world: Environment) -> int:
    brief = context.style == "bare" and not context.format.thinks
    return settings.max_tokens or (world.action_tokens if brief else 512)


def evaluation_sampling(settings: TrainSettings, max_tokens: int) -> Sampling:
    chosen = settings.evaluation
    return Sampling(chosen.temperature, chosen.top_p, chosen.top_k, max_tokens)


# One world of a run: what is practised there, by which method, in which simulators.


@dataclass(frozen=True)
class Collector:
    method: Method
    tasks: Sequence[Task]
    worlds: WorldPool
    max_tokens: int
    """the longest completion"""
    max_steps: int
    """the longest episode"""
    name: str = ""
    share: float = 1.0
    """of the groups of an iteration"""

    def collect(
        self, info: IterationInfo, policy: Policy, count: int, drawn: int, observer: RolloutObserver = NO_OBSERVER
    ) -> tuple[list[Group], list[Group], int]:
        """(all groups rolled out, those to train on, tasks taken). A method with a selection rolls out more tasks until it has
        enough. `drawn` tasks of the pool were taken before."""
        method, schedule, chosen = self.method, self.method.schedule, []
        sampling = Sampling(temperature=schedule.temperature, top_p=schedule.top_p, max_tokens=self.max_tokens)
        played: list[Group] = []
        sound: list[Group] = []
        count = min(count, len(self.tasks))
        taken = 0
        for attempt in range(method.selection.rounds if method.selection else 1):
            picked = walk(len(self.tasks), drawn + taken, count, derive(info.seed, "tasks", self.name))
            taken += count
            fresh = rollout_groups(
                [self.tasks[i] for i in picked],
                schedule.group_size,
                derive(info.seed, "rollout", info.iteration, attempt, *([self.name] if self.name else [])),
                method.conditions,
                method.context,
                self.worlds,
                policy,
                sampling,
                self.max_steps,
                method.hidden_layer,
                observer=observer,
            )
            played += fresh
            sound = [group for group in (g.without_crashes() for g in fresh) if len(group)]
            if method.selection is None:
                return played, sound, taken
            chosen += [group for group in sound if method.selection.keep(group)]
            if len(chosen) >= count:
                break
        # Not one group to learn from in all rounds: train on what there is, as the paper does.
        return played, chosen[:count] or sound, taken


def walk(pool: int, drawn: int, count: int, seed: int) -> np.ndarray:
    """The next `count` places of a pool of which `drawn` were taken before: all of it once in a seeded order, then all of it in
    another. Nothing is remembered but how far the walk has come."""
    places = []
    while count > 0:
        epoch, at = divmod(drawn, pool)
        order = np.random.default_rng(derive(seed, epoch)).permutation(pool)
        places.append(order[at : at + count])
        drawn, count = drawn + len(places[-1]), count - len(places[-1])
    return np.concatenate(places) if places else np.zeros(0, np.int64)


def share_out(groups: int, shares: Sequence[float], number: int) -> list[int]:
    """How many of an iteration's groups each world gets: its share as a whole number; what is left over goes to whoever is
    furthest behind its share by now, so that over the iterations all get theirs."""
    behind = np.zeros(len(shares))
    counts = np.zeros(len(shares), int)
    quota = groups * np.asarray(shares)
    for _ in range(number):
        behind += quota
        counts = np.floor(quota + 1e-9).astype(int)
        behind -= counts
        for _ in range(groups - int(counts.sum())):
            furthest = int(np.argmax(behind))
            counts[furthest] += 1
            behind[furthest] -= 1
    return counts.tolist()
