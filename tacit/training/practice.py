"""What a run does in one world: what it trains on there, what it is measured on, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.core.errors import TacitError
from tacit.core.method import Context, Method
from tacit.core.protocols import Sampling
from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.evaluation.panels import Panel, choose_panel
from tacit.rollout.actors import Actors
from tacit.rollout.processes import Processes
from tacit.rollout.workers import Workers
from tacit.rollout.worlds import InPlace, WorldPool
from tacit.training.settings import TrainSettings


@dataclass(frozen=True)
class Course:
    """What a run trains on and what it is measured on."""

    tasks: Sequence[Task]
    panel: Panel
    further: tuple[Panel, ...] = ()
    """measured after each stage only"""
    notes: tuple[str, ...] = ()
    """which of these there is nothing of on this machine"""

    @classmethod
    def of(cls, world: Environment, settings: TrainSettings) -> Course:
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
class Practice:
    world: Environment
    method: Method
    """built for this world"""
    settings: TrainSettings
    """the run's, with what was said of this world alone"""
    course: Course
    share: float = 1.0
    """of the groups of an iteration"""

    @classmethod
    def of(cls, world: Environment, method: Method, settings: TrainSettings, share: float = 1.0) -> Practice:
        return cls(world, method, settings, Course.of(world, settings), share)

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
        return InPlace(world.make, settings.world_timeout_s)
    where = Actors(settings.workers_at, processes) if settings.workers_at else Processes()
    return Workers(world.make, processes, settings.world_timeout_s, where=where)


def completion_limit(settings: TrainSettings, context: Context, world: Environment) -> int:
    brief = context.style == "bare" and not context.format.thinks
    return settings.max_tokens or (world.action_tokens if brief else 512)


def evaluation_sampling(settings: TrainSettings, max_tokens: int) -> Sampling:
    chosen = settings.evaluation
    return Sampling(chosen.temperature, chosen.top_p, chosen.top_k, max_tokens)
