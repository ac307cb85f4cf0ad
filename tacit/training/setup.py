"""One world of a run: its tasks, method and settings, and its world pool."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from tacit.core.errors import TacitError, describe_error, unknown
from tacit.core.method import Context, Method
from tacit.core.progress import pluralize
from tacit.core.protocols import Sampling
from tacit.core.types import Observation, Task
from tacit.core.world import Environment
from tacit.evaluation.panels import Panel, choose_panel
from tacit.rollout.replay import play_episode
from tacit.rollout.workers import ProcessLauncher, RayLauncher, WorkerPool
from tacit.rollout.worlds import InProcessPool, TimedExpert, TimedWorld, WorldPool
from tacit.training.settings import TrainSettings

TRIAL_TASKS = 4  # tasks that `check_start` tries
TRIAL_S = 5.0  # it ends their episodes after this time


class FirstAction:
    """Takes the first admissible action, or any text in worlds that list none: a model may write anything."""

    def act(self, observation: Observation) -> str:
        return observation.actions[0] if observation.actions else "look"


@dataclass(frozen=True)
class TaskSets:
    training: Sequence[Task]
    panel: Panel
    further: tuple[Panel, ...] = ()
    """panels evaluated only at the end of a stage"""
    notes: tuple[str, ...] = ()
    """messages about panels that cannot be evaluated"""

    @classmethod
    def of(cls, world: Environment, settings: TrainSettings) -> TaskSets:
        """The tasks of a world. Raises if its data are missing, so call it before anything is written."""
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
    settings: TrainSettings
    """the run's settings with this world's overrides"""
    tasks: TaskSets
    share: float = 1.0
    """share of an iteration's groups"""

    @classmethod
    def of(cls, world: Environment, method: Method, settings: TrainSettings, share: float = 1.0) -> WorldSetup:
        return cls(world, method, settings, TaskSets.of(world, settings), share)

    def check_start(self) -> WorldSetup:
        """Play the first tasks of the panel before the model is loaded; raises if all break, or if a task's family is
        unknown. Adds a note if panel and training share tasks."""
        panel, name = self.tasks.panel.tasks, self.tasks.panel.name
        for task in (*panel, *self.tasks.training):
            if task.family not in self.world.families:
                raise unknown(f"family of task {task.id!r} of world {self.name!r}", task.family, self.world.families)
            try:
                json.dumps(task.data)
            except (TypeError, ValueError) as error:
                raise TacitError(
                    f"the data of task {task.id!r} of world {self.name!r} is stored as JSON, but {describe_error(error)}."
                ) from error
        if not (self.world.slow or self.settings.workers or self.settings.workers_at):
            self._check_playable(panel[:TRIAL_TASKS], name)
        trained = {repr(task.data) for task in self.tasks.training if task.data}
        shared = sum(repr(task.data) in trained for task in panel)
        if not shared or panel[0].split == self.settings.split:
            return self
        note = (
            f"note: {shared} of {pluralize(len(panel), 'task')} of {name} have the data of a training task, so success there "
            "is partly success on training tasks; make the splits disjoint"
        )
        return replace(self, tasks=replace(self.tasks, notes=(*self.tasks.notes, note)))

    def _check_playable(self, tasks: Sequence[Task], name: str) -> None:
        """Play the tasks until one can be played: an episode with the world's expert, or one step if it has none."""
        limit_s, failures, end = step_limit_s(self.world, self.settings), list[str](), time.monotonic() + TRIAL_S
        make_expert = self.world.expert(self.settings.sft.expert or None) if self.world.experts else None
        for task in tasks:
            try:
                with closing(TimedWorld(self.world.make, limit_s)) as live:
                    agent = TimedExpert(make_expert, limit_s, task) if make_expert else FirstAction()
                    for _ in play_episode(live, task, agent, self.max_steps if make_expert else 1):
                        if time.monotonic() > end:
                            break
                return
            except TacitError:
                raise
            except (Exception, SystemExit) as error:
                failures.append(f"{describe_error(error)}, in task {task.id!r}")
        raise TacitError(
            f"world {self.name!r} or its expert breaks in the first {pluralize(len(tasks), 'task')} of {name}: {failures[0]}. "
            "Fix it, then run the command again."
        )

    @property
    def name(self) -> str:
        return self.world.name

    @property
    def max_steps(self) -> int:
        return self.settings.max_steps or self.world.max_steps

    @property
    def max_tokens(self) -> int:
        return completion_limit(self.settings, self.method.context, self.world)


def step_limit_s(world: Environment, settings: TrainSettings) -> float:
    return max(settings.world_timeout_s, world.longest_s)


def make_worlds(world: Environment, settings: TrainSettings) -> WorldPool:
    processes = settings.workers or (4 if world.slow or settings.workers_at else 0)
    timeout_s = step_limit_s(world, settings)
    if not processes:
        return InProcessPool(world.make, timeout_s)
    launcher = RayLauncher(settings.workers_at, processes) if settings.workers_at else ProcessLauncher()
    return WorkerPool(world.make, processes, timeout_s, launcher=launcher)


def completion_limit(settings: TrainSettings, context: Context, world: Environment) -> int:
    brief = context.style == "bare" and not context.format.thinks
    return settings.max_tokens or (world.action_tokens if brief else 512)


def evaluation_sampling(settings: TrainSettings, max_tokens: int) -> Sampling:
    chosen = settings.evaluation
    return Sampling(chosen.temperature, chosen.top_p, chosen.top_k, max_tokens)
