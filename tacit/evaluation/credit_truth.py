"""What every step of a group was worth under the policy that played it, by Monte Carlo.

    V(s)    = E[γ^{n−1} 1{success in n more steps}]         the policy goes on from s
    Q(s, a) = γ V(s′), or 1{success} where a ended it        s′: the state the recorded action led to
    A(s, a) = Q(s, a) − V(s)

From every state that the group visited the policy plays on to the end, M times, with randomness of its own: nothing of what
the group itself earned is used, so its estimators and this truth share no noise. The world is the same for the same
actions, so Q at one step is V at the next, and steps with the same turns before them are one state, valued once.

A continuation that does for a while what a member did comes through the states that member visited, and from each of them on it
is one more continuation of that state: what happens after a state does not depend on how it was begun. A policy that knows
what it wants mostly does the same, so states far into an episode are valued by many times M; and Q and V of a step that it
takes almost always rest on nearly the same episodes, whose noise their difference then does not have.

Continuations are dealt out to two halves. Each half gives an A of its own, and the two agree as far as they measure something:
what they share is the truth, what they do not is Monte Carlo noise (`agreement`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tacit.core.actions import ActionFormat
from tacit.core.errors import TacitError
from tacit.core.method import Context, PromptReader
from tacit.core.seeds import derive
from tacit.core.types import Condition, Group, Observation, Step, Task, Trajectory, Transition
from tacit.core.world import World
from tacit.evaluation.evaluate import RolloutSetup
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.replay import Interaction
from tacit.rollout.worlds import InProcessPool

# Begin an episode in the middle. A world that shows the same for the same actions can be brought to any state it has been in:
# reset it and repeat what was done. So a rollout needs to know nothing of it: the task carries the turns that come first, the
# world takes their actions on reset, and the context is told of them, as a rollout tells it, before it writes its first prompt.

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
class MidwayContext(Context):
    """A context that has been told of the turns that come first."""

    context: Context
    make: Callable[[], World]
    _last: dict[tuple[str, tuple[Done, ...]], list[Interaction]] = field(default_factory=dict, repr=False, compare=False)

    style = property(lambda self: self.context.style)

    @property
    def format(self) -> ActionFormat:
        return self.context.format

    def begin(self, task: Task, condition: Condition) -> PromptReader:
        whole, done = apart(task)
        reader = self.context.begin(whole, condition)
        for observation, action, transition, wrote in self._happened(whole, done):
            reader.read(observation)
            reader.record(action, transition, wrote)
        return reader

    def _happened(self, task: Task, done: tuple[Done, ...]) -> list[Interaction]:
        """Many episodes begin at one state, one after another; it is gone to once."""
        if (task.id, done) not in self._last:
            self._last.clear()
            self._last[task.id, done] = happenings(self.make, task, done)
        return self._last[task.id, done]


def happenings(make: Callable[[], World], task: Task, done: Sequence[Done]) -> list[Interaction]:
    world = make()
    try:
        observation, found = world.reset(task), []
        for action, wrote in done:
            transition = world.step(action)
            found.append(Interaction(observation, action, transition, wrote))
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


BATCH = 512
"""episodes played side by side"""
OFTEN = 4
"""a state that many steps share is valued by up to this many times the continuations: its noise is in all of them"""
State = tuple[Condition, tuple[Done, ...]]
"""how a member was rolled out, and what it had done; and written, which it may read"""


@dataclass(frozen=True, eq=False)
class Continuations:
    """How the policy fared from one state: (won, steps until the end) of each episode that came through it, by half."""

    ends_H: tuple[list[tuple[bool, int]], list[tuple[bool, int]]] = field(default_factory=lambda: ([], []))

    def value(self, gamma: float, half: int) -> float:
        return float(np.mean([gamma ** (steps - 1) if won else 0.0 for won, steps in self.ends_H[half]]))


@dataclass(frozen=True, eq=False)
class Truth:
    """Of the N flat steps of one group."""

    q_HN: np.ndarray
    """[2, N], one row for each half"""
    v_HN: np.ndarray
    episodes: int
    """continuations that were played"""
    steps: int
    """and their steps"""
    per_state: float
    """how many a state was valued by, on average"""


def value_group(
    setup: RolloutSetup,
    group: Group,
    rollouts: int,
    gamma: float = 0.95,
    seed: int = 0,
    batch: int = BATCH,
    progress: Callable[[int, int], None] | None = None,
) -> Truth:
    """Q and V of every step, from `rollouts` continuations of each state (rounded up to an even number, at least 2)."""
    if group.trajectories:
        check_replay(setup.world.make, max(group.trajectories, key=len))
    found, episodes, steps = continuations(setup, group, max(2, rollouts + rollouts % 2), seed, batch, progress)
    halves = [_values(group, found, gamma, half) for half in (0, 1)]
    counts = [len(ends) for after in found.values() for ends in after.ends_H]
    return Truth(
        q_HN=np.array([q_N for q_N, _ in halves]).reshape(2, -1),
        v_HN=np.array([v_N for _, v_N in halves]).reshape(2, -1),
        episodes=episodes,
        steps=steps,
        per_state=2 * float(np.mean(counts)) if counts else 0.0,
    )


def states_of(trajectory: Trajectory) -> list[State]:
    """The states in which its steps were taken."""
    done = tuple(map(done_in, trajectory.steps))
    return [(trajectory.condition, done[:t]) for t in range(len(done))]


def continuations(
    setup: RolloutSetup,
    group: Group,
    rollouts: int,
    seed: int = 0,
    batch: int = BATCH,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[State, Continuations], int, int]:
    """(for every state of the group how the policy fared from there, episodes played, their steps). An episode whose world
    breaks is left out."""
    visits = Counter(state for trajectory in group.trajectories for state in states_of(trajectory))
    plans: list[EpisodePlan] = []
    begun: list[tuple[State, int]] = []
    for (condition, done), count in visits.items():
        said = "\x1f".join(action if wrote is None else f"{action}\x1e{wrote}" for action, wrote in done)
        place = derive(seed, "continuation", group.task.id, condition.entry, condition.note, said)
        for number in range(rollouts * min(count, OFTEN)):
            plans.append(EpisodePlan(midway(group.task, done), derive(place, number), condition))
            begun.append(((condition, done), number % 2))
    context = MidwayContext(setup.context, setup.world.make)
    worlds = InProcessPool(MidwayWorlds(setup.world.make, setup.max_steps))
    found = {state: Continuations() for state in visits}
    steps = 0
    try:
        for start in range(0, len(plans), batch):
            played = rollout(plans[start : start + batch], context, worlds, setup.policy, setup.sampling, setup.max_steps)
            for (state, half), trajectory in zip(begun[start : start + batch], played, strict=True):
                if not trajectory.stop.crashed:
                    _count(found, state, half, trajectory)
                    steps += len(trajectory)
            if progress:
                progress(min(start + batch, len(plans)), len(plans))
    finally:
        worlds.close()
    lost = next((state for state, after in found.items() if not all(after.ends_H)), None)
    if lost is not None:
        raise TacitError(
            f"task {group.task.id!r}: the world broke whenever an episode went on from step {len(lost[1])}, so what was done "
            "there cannot be valued."
        )
    return found, len(plans), steps


def _count(found: Mapping[State, Continuations], state: State, half: int, trajectory: Trajectory) -> None:
    """One episode, for the state it began at and for every other that it came through while it did what a member had done."""
    condition, done = state
    for t, step in enumerate(trajectory.steps):
        if (condition, done) not in found:
            return
        found[condition, done].ends_H[half].append((trajectory.success, len(trajectory) - t))
        done = (*done, done_in(step))


def _values(
    group: Group, found: Mapping[State, Continuations], gamma: float, half: int
) -> tuple[Sequence[float], Sequence[float]]:
    value = {state: after.value(gamma, half) for state, after in found.items()}
    q_N: list[float] = []
    v_N: list[float] = []
    for trajectory in group.trajectories:
        states = states_of(trajectory)
        v_N += [value[state] for state in states]
        q_N += [gamma * value[state] for state in states[1:]]
        q_N += [float(trajectory.success)] if states else []
    return q_N, v_N
