"""Looking back at an episode without a model: what a tracker and an expert say of each step, now that all is over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from tacit.core.types import Observation, Trajectory, Transition


class Adviser(Protocol):
    """An expert that takes every turn as it finds it, whoever made the move before."""

    def act(self, observation: Observation) -> str: ...


class Measure(Protocol):
    """The part of a tracker that is needed here (core/world.py)."""

    def start(self, task, observation: Observation): ...

    def update(self, state, action: str, transition: Transition): ...

    def signals(self, before, after) -> Mapping[str, float]: ...


def transitions(trajectory: Trajectory) -> Iterator[tuple[str, Transition]]:
    """The actions of an episode and what the world answered."""
    shown = [*(step.observation for step in trajectory.steps[1:]), trajectory.final]
    for step, after in zip(trajectory.steps, shown, strict=True):
        last = step is trajectory.steps[-1]
        yield step.action, Transition(after, last, last and trajectory.success, effective=step.effective, label=step.label)


def measured(trajectory: Trajectory, tracker: Measure) -> list[Mapping[str, float]]:
    """What a tracker makes of each step, whatever the agent itself read."""
    if not trajectory.steps:
        return []
    state = tracker.start(trajectory.task, trajectory.steps[0].observation)
    found = []
    for action, transition in transitions(trajectory):
        before, state = state, tracker.update(state, action, transition)
        found.append(tracker.signals(before, state))
    return found


def critical_steps(
    trajectory: Trajectory,
    adviser: Adviser,
    tracker: Measure,
    most: int = 5,
    achieved: Sequence[str] = ("progress.subgoal",),
) -> dict[int, str]:
    """Up to `most` steps on which the episode turned, each with what to do there.

    Of a success: the steps that achieved something by one of these signals, with what was done. Of a failure: the steps that
    were refused, repeated or counted as an error, with what the expert would have done instead, having read no more than the
    agent. What is said once is not said again.
    """
    signals = measured(trajectory, tracker)
    advised = [adviser.act(step.observation) for step in trajectory.steps]
    found: dict[int, str] = {}
    for t, step in enumerate(trajectory.steps):
        if trajectory.success:
            turned, told = any(signals[t].get(name, 0.0) > 0 for name in achieved), step.action
        else:
            turned = not step.effective or not step.valid or signals[t].get("error", 0.0) > 0
            told = advised[t]
            turned = turned and told != step.action
        if turned and told and told not in found.values():
            found[t] = told
    return dict(list(found.items())[:most])


def most_repeated(trajectory: Trajectory) -> str:
    """The action taken most often, where one was taken more than twice; else nothing."""
    counts: dict[str, int] = {}
    for step in trajectory.steps:
        counts[step.action] = counts.get(step.action, 0) + 1
    action = max(counts, key=lambda a: counts[a], default="")
    return action if counts.get(action, 0) > 2 else ""
