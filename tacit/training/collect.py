"""One world of a run: its tasks, its settings, and the rollouts collected in it."""

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
    """Training tasks and evaluation panels of one world."""

    training: Sequence[Task]
    panel: Panel
    further: tuple[Panel, ...] = ()
    """panels evaluated only at the end of a stage"""
    notes: tuple[str, ...] = ()
    """optional panels that are missing on this machine"""

    @classmethod
    def of(cls, world: Environment, settings: TrainSettings) -> TaskSets:
        """Raises if the world's data are missing; call it before anything is written."""
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
    """What a run does in one world."""

    world: Environment
    method: Method
    """built for this world"""
    settings: TrainSettings
    """the run's settings with this world's overrides"""
    tasks: TaskSets
    share: float = 1.0
    """share of an iteration's groups"""

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
    launcher = RayLauncher(settings.workers_at, processes) if settings.workers_at else ProcessLauncher()
    return WorkerPool(world.make, processes, settings.world_timeout_s, launcher=launcher)


def completion_limit(settings: TrainSettings, context: Context, world: Environment) -> int:
    brief = context.style == "bare" and not context.format.thinks
    return settings.max_tokens or (world.action_tokens if brief else 512)


def evaluation_sampling(settings: TrainSettings, max_tokens: int) -> Sampling:
    chosen = settings.evaluation
    return Sampling(chosen.temperature, chosen.top_p, chosen.top_k, max_tokens)


@dataclass(frozen=True)
class Collector:
    """Collects training rollouts in one world."""

    method: Method
    tasks: Sequence[Task]
    worlds: WorldPool
    max_tokens: int
    """longest completion"""
    max_steps: int
    """longest episode"""
    name: str = ""
    """empty if the run has one world"""
    share: float = 1.0
    """share of an iteration's groups"""

    def collect(
        self, info: IterationInfo, policy: Policy, count: int, drawn: int, observer: RolloutObserver = NO_OBSERVER
    ) -> tuple[list[Group], list[Group], int]:
        """Returns (all groups rolled out, groups to train on, number of tasks drawn).

        `drawn` tasks of the pool were drawn before. A method with a `selection` (dynamic sampling) rolls out more tasks until
        `count` groups are selected.
        """
        method, schedule, chosen = self.method, self.method.schedule, list[Group]()
        sampling = Sampling(temperature=schedule.temperature, top_p=schedule.top_p, max_tokens=self.max_tokens)
        played: list[Group] = []
        sound: list[Group] = []
        count = min(count, len(self.tasks))
        taken = 0
        for attempt in range(method.selection.rounds if method.selection else 1):
            picked = draw_tasks(len(self.tasks), drawn + taken, count, derive(info.seed, "tasks", self.name))
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
        # If no group was selected in any round, train on the last round's groups, as the paper does.
        return played, chosen[:count] or sound, taken


def draw_tasks(pool: int, drawn: int, count: int, seed: int) -> np.ndarray:
    """The next `count` task indices after `drawn`: epochs over the pool, each in its own seeded order."""
    places = []
    while count > 0:
        epoch, at = divmod(drawn, pool)
        order = np.random.default_rng(derive(seed, epoch)).permutation(pool)
        places.append(order[at : at + count])
        drawn, count = drawn + len(places[-1]), count - len(places[-1])
    return np.concatenate(places) if places else np.zeros(0, np.int64)


def divide_groups(groups: int, shares: Sequence[float], number: int) -> list[int]:
    """Groups per world in iteration `number`: each share rounded down, and the remainder to the worlds furthest behind their
    share, so that shares hold over the iterations."""
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
