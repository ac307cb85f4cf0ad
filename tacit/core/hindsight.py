"""Looking back at an episode without a model: what a tracker and an expert say of each step, now that all is over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from tacit.core.protocols import Tokenizer
from tacit.core.types import Group, Observation, Trajectory, Transition


class Adviser(Protocol):
    """An expert that takes every turn as it finds it, whoever made the move before."""

    def act(self, observation: Observation) -> str: ...


class Measure(Protocol):
    """The part of a tracker that is needed here (core/world.py)."""

    def start(self, task, observation: Observation): ...

    def update(self, state, action: str, transition: Transition): ...

    def signals(self, before, after) -> Mapping[str, float]: ...


def iter_transitions(trajectory: Trajectory) -> Iterator[tuple[str, Transition]]:
    """The actions of an episode and what the world answered."""
    for step, after in zip(trajectory.steps, trajectory.observations[1:], strict=True):
        last = step is trajectory.steps[-1]
        yield step.action, Transition(after, last, last and trajectory.success, effective=step.effective, label=step.label)


def tracker_signals(trajectory: Trajectory, tracker: Measure) -> list[Mapping[str, float]]:
    """What a tracker makes of each step, whatever the agent itself read."""
    if not trajectory.steps:
        return []
    return [tracker.signals(before, after) for before, after in pairwise(tracker_states(trajectory, tracker))]


def tracker_states(trajectory: Trajectory, tracker: Measure) -> list[Any]:
    """The tracker's state before each step and at the end of an episode with at least one step."""
    states = [tracker.start(trajectory.task, trajectory.steps[0].observation)]
    for action, transition in iter_transitions(trajectory):
        states.append(tracker.update(states[-1], action, transition))
    return states


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
    signals = tracker_signals(trajectory, tracker)
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


# What a finished episode teaches (OPID, §3.2), and where such a lesson stands in a prompt.
#
# A(τ) = (s_ep, {s_step,t : t ∈ C})        `Skills`: one for the whole episode, and one for each critical step
# h̃ = H(h, s)                              `Lesson`: after the task, or right before the request for an action


@dataclass(frozen=True)
class Skills:
    episode: str = ""
    """a workflow that worked, or what to avoid"""
    steps: Mapping[int, str] = field(default_factory=dict)
    """index of a critical step -> what to do there"""
    summary: str = ""

    def __bool__(self) -> bool:
        return bool(self.episode or self.steps)


@dataclass(frozen=True)
class Lesson:
    """What is put into one prompt."""

    task: str = ""
    """after the task statement"""
    step: str = ""
    """right before the request for an action"""

    def __bool__(self) -> bool:
        return bool(self.task or self.step)


class Teacher(Protocol):
    """Knows the prompts that a policy would have read, had it been told what it needed to know."""

    def lessons(self, trajectory: Trajectory) -> Sequence[Sequence[Lesson]]:
        """Per step: the lessons whose effect is measured there, each by itself. Usually one, or none."""
        ...

    def prompts(self, group: Group, tokenizer: Tokenizer) -> list[list[np.ndarray]]:
        """H: the same, as the tokens of whole prompts, for the group's flat steps."""
        ...


# A tracker's signals: what a step was worth in two sums, and beside them what each rule gave to it.
#
#     {"progress": 1.02, "error": 0.2, "progress.subgoal": 1.0, "progress.hinted_place": 0.02, "error.repeated": 0.2}
#
# Both sums are always there; a rule only where it came up, since signals are measured at every step of every episode.

PROGRESS, ERROR = "progress", "error"


def sum_signals(progress: Mapping[str, float], errors: Mapping[str, float]) -> dict[str, float]:
    """The signals of one step, from what each rule gave; rules that gave nothing are left out. Errors are positive amounts."""
    signals = {PROGRESS: float(sum(progress.values())), ERROR: float(sum(errors.values()))}
    for name, worth in progress.items():
        if worth:
            signals[f"{PROGRESS}.{name}"] = float(worth)
    for name, worth in errors.items():
        if worth:
            signals[f"{ERROR}.{name}"] = float(worth)
    return signals


def score_events(events: Iterable[str], table: Mapping[str, float]) -> dict[str, float]:
    """What each event was worth, those that happened twice counted twice."""
    worth: dict[str, float] = {}
    for event in events:
        worth[event] = worth.get(event, 0.0) + table[event]
    return worth


def component_names(progress: Iterable[str], errors: Iterable[str]) -> tuple[str, ...]:
    """The names of all rules, as `summed` spells them."""
    return (*(f"{PROGRESS}.{name}" for name in progress), *(f"{ERROR}.{name}" for name in errors))
