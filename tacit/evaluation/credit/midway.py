"""Begin an episode in the middle. A world that shows the same for the same actions can be brought to any state it has been in:
reset it and repeat what was done. So a rollout needs to know nothing of it: the task carries the actions that come first, the
world takes them on reset, and the context is told of them before it writes its first prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tacit.core.actions import ActionFormat
from tacit.core.errors import TacitError
from tacit.core.method import Context, Reader
from tacit.core.types import ActionStyle, Condition, Observation, Task, Trajectory, Transition
from tacit.core.world import World

AFTER = "after these actions"
"""where a task that begins midway keeps them, among its data"""
Turn = tuple[Observation, str, Transition]
"""what was seen, what was done, what came of it"""


def midway(task: Task, actions: Sequence[str]) -> Task:
    """The task, begun after these actions."""
    return replace(task, data={**task.data, AFTER: tuple(actions)})


def apart(task: Task) -> tuple[Task, tuple[str, ...]]:
    """(the task from its beginning, the actions that come first)"""
    return replace(task, data={k: v for k, v in task.data.items() if k != AFTER}), tuple(task.data.get(AFTER, ()))


@dataclass(frozen=True)
class MidwayWorlds:
    """Makes worlds whose tasks may begin midway. An episode ends after `limit` steps, those that came first included."""

    make: Callable[[], World]
    limit: int

    def __call__(self) -> World:
        return _MidwayWorld(self.make(), self.limit)


class _MidwayWorld:
    def __init__(self, world: World, limit: int) -> None:
        self._world, self._limit, self._steps = world, limit, 0

    def reset(self, task: Task) -> Observation:
        whole, actions = apart(task)
        observation = self._world.reset(whole)
        for action in actions:
            observation = self._world.step(action).observation
        self._steps = len(actions)
        return observation

    def step(self, action: str) -> Transition:
        transition = self._world.step(action)
        self._steps += 1
        return transition if self._steps < self._limit else replace(transition, done=True)

    def close(self) -> None:
        self._world.close()


@dataclass(frozen=True)
class MidwayContext:
    """A context that has been told of the actions that come first."""

    context: Context
    make: Callable[[], World]
    _last: dict[tuple[str, tuple[str, ...]], list[Turn]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def style(self) -> ActionStyle:
        return self.context.style

    @property
    def format(self) -> ActionFormat:
        return self.context.format

    def begin(self, task: Task, condition: Condition) -> Reader:
        whole, actions = apart(task)
        reader = self.context.begin(whole, condition)
        for observation, action, transition in self._told(whole, actions):
            reader.read(observation)
            reader.record(action, transition)
        return reader

    def _told(self, task: Task, actions: tuple[str, ...]) -> list[Turn]:
        """Many episodes begin at one state, one after another; it is gone to once."""
        if (task.id, actions) not in self._last:
            self._last.clear()
            self._last[task.id, actions] = turns_of(self.make, task, actions)
        return self._last[task.id, actions]


def turns_of(make: Callable[[], World], task: Task, actions: Sequence[str]) -> list[Turn]:
    world = make()
    try:
        observation, turns = world.reset(task), []
        for action in actions:
            transition = world.step(action)
            turns.append((observation, action, transition))
            observation = transition.observation
        return turns
    finally:
        world.close()


def check_replay(make: Callable[[], World], trajectory: Trajectory) -> None:
    """Refuse a world that does not show the same again."""
    turns = turns_of(make, trajectory.task, [step.action for step in trajectory.steps])
    for t, ((observation, _, _), step) in enumerate(zip(turns, trajectory.steps, strict=True)):
        if observation.text != step.observation.text:
            raise TacitError(
                f"task {trajectory.task.id!r} of world {trajectory.task.world!r} showed {observation.text[:60]!r} at step {t} "
                f"where it had shown {step.observation.text[:60]!r}: the same actions do not lead to the same state, so what a "
                "step was worth cannot be measured by going back to it."
            )
