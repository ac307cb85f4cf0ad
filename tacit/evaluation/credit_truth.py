"""Monte Carlo values of every step of a group under the policy that played it.

    V(s)    = E[γ^{n−1} 1{success in n more steps}]         the policy continues from s
    Q(s, a) = γ V(s′), or 1{success} if a ended the episode    s′: the state after the recorded action
    A(s, a) = Q(s, a) − V(s)

From every visited state the policy plays M continuations with fresh seeds, so truth and estimators share no noise. Worlds are
deterministic: Q at one step is V at the next, and steps with the same history are one state, valued once.

A continuation that passes through other visited states also counts for those, so late states have many more than M, and Q and V
of a step the policy nearly always takes share most of their noise.

Continuations are split into two halves with separate estimates of A; what the halves share is signal, the rest is noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.method import PromptReader, WrappedContext
from tacit.core.seeds import derive
from tacit.core.types import Condition, Group, Observation, Step, Task, Trajectory, Transition
from tacit.core.world import World
from tacit.evaluation.evaluate import RolloutSetup
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.replay import Interaction
from tacit.rollout.worlds import InProcessPool

# Start an episode in the middle: reset the world and replay the first actions. The task carries these turns, the world replays
# them on reset, and the context records them before its first prompt.

AFTER = "after these turns"  # key of these turns in the task's data
TakenTurn = tuple[str, str | None]  # (action, completion text if it did not parse)


def taken_turn(step: Step) -> TakenTurn:
    return step.action, None if step.valid else step.completion.text


def split_midway(task: Task) -> tuple[Task, tuple[TakenTurn, ...]]:
    """(task without replayed turns, the replayed turns)"""
    return replace(task, data={k: v for k, v in task.data.items() if k != AFTER}), tuple(task.data.get(AFTER, ()))


class MidwayWorld:
    """A world whose tasks may start midway. An episode has at most `limit` steps, including the replayed ones."""

    def __init__(self, world: World, limit: int) -> None:
        self._world, self._limit, self._steps = world, limit, 0

    def reset(self, task: Task) -> Observation:
        original, turns = split_midway(task)
        observation = self._world.reset(original)
        for action, _ in turns:
            observation = self._world.step(action).observation
        self._steps = len(turns)
        return observation

    def step(self, action: str) -> Transition:
        transition = self._world.step(action)
        self._steps += 1
        return transition if self._steps < self._limit else replace(transition, done=True)

    def close(self) -> None:
        self._world.close()


@dataclass(frozen=True)
class MidwayContext(WrappedContext):
    """A context that records the replayed turns before its first prompt."""

    make: Callable[[], World]
    _last: dict[tuple[str, tuple[TakenTurn, ...]], list[Interaction]] = field(default_factory=dict, repr=False, compare=False)

    def begin(self, task: Task, condition: Condition) -> PromptReader:
        original, turns = split_midway(task)
        reader = self.inner.begin(original, condition)
        for observation, action, transition, raw_text in self._replay(original, turns):
            reader.read(observation)
            reader.record(action, transition, raw_text)
        return reader

    def _replay(self, task: Task, turns: tuple[TakenTurn, ...]) -> list[Interaction]:
        """Cached, because consecutive episodes start from the same state."""
        if (task.id, turns) not in self._last:
            self._last.clear()
            self._last[task.id, turns] = replay_turns(self.make, task, turns)
        return self._last[task.id, turns]


def replay_turns(make: Callable[[], World], task: Task, turns: Sequence[TakenTurn]) -> list[Interaction]:
    world = make()
    try:
        observation, interactions = world.reset(task), []
        for action, raw_text in turns:
            transition = world.step(action)
            interactions.append(Interaction(observation, action, transition, raw_text))
            observation = transition.observation
        return interactions
    finally:
        world.close()


BATCH = 512  # concurrent episodes
MAX_FACTOR = 4  # a state shared by many steps gets up to this many times the continuations
State = tuple[Condition, tuple[TakenTurn, ...]]  # condition of the member, its actions and completions


Outcomes = tuple[list[tuple[bool, int]], list[tuple[bool, int]]]  # by half: (won, steps to the end) of each continuation


@dataclass(frozen=True, eq=False)
class Truth:
    """Values of the N flat steps of one group."""

    q_HN: np.ndarray  # [2, N], one row per half
    v_HN: np.ndarray
    episodes: int  # continuations played
    steps: int  # their steps
    per_state: float  # mean continuations per state


def value_group(
    setup: RolloutSetup, group: Group, rollouts: int, gamma: float = 0.95, seed: int = 0, batch: int = BATCH
) -> Truth:
    """Q and V of every step from `rollouts` continuations per state (rounded up to an even number, at least 2)."""
    longest = max(group.trajectories, key=len, default=None)
    replayed = replay_turns(setup.world.make, group.task, [taken_turn(step) for step in longest.steps]) if longest else []
    for t, ((observation, *_), step) in enumerate(zip(replayed, longest.steps if longest else (), strict=True)):
        if observation.text != step.observation.text:
            raise TacitError(
                f"task {group.task.id!r} of world {group.task.world!r} showed {observation.text[:60]!r} at step {t} where it "
                f"had shown {step.observation.text[:60]!r}: the same actions do not lead to the same state, so the value "
                "of a step cannot be measured by replaying it."
            )
    outcomes, episodes, steps = continuations(setup, group, max(2, rollouts + rollouts % 2), seed, batch)
    q_HN: list[list[float]] = [[], []]
    v_HN: list[list[float]] = [[], []]
    for half in (0, 1):
        value = {
            s: float(np.mean([gamma ** (n - 1) if won else 0.0 for won, n in halves[half]])) for s, halves in outcomes.items()
        }
        for trajectory in group.trajectories:
            states = states_of(trajectory)
            v_HN[half] += [value[state] for state in states]
            q_HN[half] += [gamma * value[state] for state in states[1:]]
            q_HN[half] += [float(trajectory.success)] if states else []
    counts = [len(ends) for halves in outcomes.values() for ends in halves]
    q, v = (np.array(values, float).reshape(2, -1) for values in (q_HN, v_HN))
    return Truth(q, v, episodes, steps, 2 * float(np.mean(counts)) if counts else 0.0)


def states_of(trajectory: Trajectory) -> list[State]:
    """The state before each step of the trajectory, in order."""
    turns = tuple(map(taken_turn, trajectory.steps))
    return [(trajectory.condition, turns[:t]) for t in range(len(turns))]


def continuations(
    setup: RolloutSetup, group: Group, rollouts: int, seed: int = 0, batch: int = BATCH
) -> tuple[dict[State, Outcomes], int, int]:
    """(ends by state, episodes played, their steps). An episode counts for every visited state it passes through; crashed
    episodes are dropped."""
    visits = Counter(state for trajectory in group.trajectories for state in states_of(trajectory))
    plans: list[EpisodePlan] = []
    origins: list[tuple[State, int]] = []
    for (condition, turns), count in visits.items():
        turns_text = "\x1f".join(action if raw_text is None else f"{action}\x1e{raw_text}" for action, raw_text in turns)
        state_seed = derive(seed, "continuation", group.task.id, condition.entry, condition.note, turns_text)
        task = replace(group.task, data={**group.task.data, AFTER: turns})
        for number in range(rollouts * min(count, MAX_FACTOR)):
            plans.append(EpisodePlan(task, derive(state_seed, number), condition))
            origins.append(((condition, turns), number % 2))
    context = MidwayContext(setup.context, setup.world.make)
    worlds = InProcessPool(lambda: MidwayWorld(setup.world.make(), setup.max_steps))
    outcomes: dict[State, Outcomes] = {state: ([], []) for state in visits}
    steps = 0
    try:
        for start in range(0, len(plans), batch):
            played = rollout(plans[start : start + batch], context, worlds, setup.policy, setup.sampling, setup.max_steps)
            for ((condition, turns), half), trajectory in zip(origins[start : start + batch], played, strict=True):
                if trajectory.stop.crashed:
                    continue
                steps += len(trajectory)
                for t, step in enumerate(trajectory.steps):
                    if (condition, turns) not in outcomes:
                        break
                    outcomes[condition, turns][half].append((trajectory.success, len(trajectory) - t))
                    turns = (*turns, taken_turn(step))
    finally:
        worlds.close()
    lost = next((state for state, halves in outcomes.items() if not all(halves)), None)
    if lost is not None:
        raise TacitError(
            f"task {group.task.id!r}: the world broke whenever an episode went on from step {len(lost[1])}, so what was done "
            "there cannot be valued."
        )
    return outcomes, len(plans), steps
