"""Begin an episode in the middle. A world that shows the same for the same actions can be brought to any state it has been in:
reset it and repeat what was done. So a rollout needs to know nothing of it: the task carries the turns that come first, the
world takes their actions on reset, and the context is told of them, as a rollout tells it, before it writes its first prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tacit.core.actions import ActionFormat
from tacit.core.errors import TacitError
from tacit.core.method import Context, Reader, take_down
from tacit.core.types import ActionStyle, Condition, Observation, Step, Task, Trajectory, Transition
from tacit.core.world import World
from tacit.rollout.retelling import Happening

AFTER = "after these turns"
"""where a task that begins midway keeps them, among its data"""
Done = tuple[str, str | None]
"""the action, and what was really written where it was none: a conversation tells an agent its own words"""


def done_in(step: Step) -> Done:
    return step.action, None if step.valid else step.completion.text


def midway(task: Task, done: Sequence[Done]) -> Task:
    """The task, begun after these turns."""
    return replace(task, data={**task.data, AFTER: tuple(done)})


def apart(task: Task) -> tuple[Task, tuple[Done, ...]]:
    """(the task from its beginning, the turns that come first)"""
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
        whole, done = apart(task)
        observation = self._world.reset(whole)
        for action, _ in done:
            observation = self._world.step(action).observation
        self._steps = len(done)
        return observation

    def step(self, action: str) -> Transition:
        transition = self._world.step(action)
        self._steps += 1
        return transition if self._steps < self._limit else replace(transition, done=True)

    def close(self) -> None:
        self._world.close()


@dataclass(frozen=True)
class MidwayContext:
    """A context that has been told of the turns that come first."""

    context: Context
    make: Callable[[], World]
    _last: dict[tuple[str, tuple[Done, ...]], list[Happening]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def style(self) -> ActionStyle:
        return self.context.style

    @property
    def format(self) -> ActionFormat:
        return self.context.format

    def begin(self, task: Task, condition: Condition) -> Reader:
        whole, done = apart(task)
        reader = self.context.begin(whole, condition)
        for observation, action, transition, wrote in self._happened(whole, done):
            reader.read(observation)
            take_down(reader, action, transition, wrote)
        return reader

    def _happened(self, task: Task, done: tuple[Done, ...]) -> list[Happening]:
        """Many episodes begin at one state, one after another; it is gone to once."""
        if (task.id, done) not in self._last:
            self._last.clear()
            self._last[task.id, done] = happenings(self.make, task, done)
        return self._last[task.id, done]


def happenings(make: Callable[[], World], task: Task, done: Sequence[Done]) -> list[Happening]:
    world = make()
    try:
        observation, found = world.reset(task), []
        for action, wrote in done:
            transition = world.step(action)
            found.append(Happening(observation, action, transition, wrote))
            observation = transition.observation
        return found
    finally:
        world.close()


def check_replay(make: Callable[[], World], trajectory: Trajectory) -> None:
    """Refuse a world that does not show the same again."""
    again = happenings(make, trajectory.task, [done_in(step) for step in trajectory.steps])
    for t, ((observation, *_), step) in enumerate(zip(again, trajectory.steps, strict=True)):
        if observation.text != step.observation.text:
            raise TacitError(
                f"task {trajectory.task.id!r} of world {trajectory.task.world!r} showed {observation.text[:60]!r} at step {t} "
                f"where it had shown {step.observation.text[:60]!r}: the same actions do not lead to the same state, so what a "
                "step was worth cannot be measured by going back to it."
            )
