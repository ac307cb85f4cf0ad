"""Rule-based analysis of finished episodes: tracker signals, critical steps and hindsight skills (OPID, §3.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np

from tacit.core.protocols import SamplingPolicy
from tacit.core.types import Group, StopReason, Trajectory, Transition
from tacit.core.world import Adviser, Tracker


def tracker_signals(trajectory: Trajectory, tracker: Tracker) -> list[Mapping[str, float]]:
    """The tracker's signals of each step, whether or not the prompt had a state block."""
    if not trajectory.steps:
        return []
    return [tracker.signals(before, after) for before, after in pairwise(tracker_states(trajectory, tracker))]


def tracker_states(trajectory: Trajectory, tracker: Tracker) -> list[Any]:
    """The tracker's state before each step and at the end of an episode with at least one step."""
    states = [tracker.start(trajectory.task, trajectory.steps[0].observation)]
    for step, after in zip(trajectory.steps, trajectory.observations[1:], strict=True):
        last = step is trajectory.steps[-1]
        transition = Transition(after, last, last and trajectory.success, effective=step.effective, label=step.label)
        states.append(tracker.update(states[-1], step.action, transition))
    return states


def critical_steps(
    trajectory: Trajectory, adviser: Adviser, tracker: Tracker, most: int = 5, achieved: Sequence[str] = ("progress.subgoal",)
) -> dict[int, str]:
    """Up to `most` critical steps: index -> advised action. Each action appears once.

    Success: steps with one of the `achieved` signals -> the action taken. Failure: steps that had no effect, did not parse or
    counted as an error -> the action of `adviser`, an expert that follows this episode's observations.
    """
    signals, advised = tracker_signals(trajectory, tracker), list[str]()
    for step in trajectory.steps:
        advised.append(adviser.act(step.observation))
        adviser.happened(step.action)
    skills: dict[int, str] = {}
    for t, step in enumerate(trajectory.steps):
        if trajectory.success:
            critical, advice = any(signals[t].get(name, 0.0) > 0 for name in achieved), step.action
        else:
            critical = not step.effective or not step.valid or signals[t].get("error", 0.0) > 0
            advice = advised[t]
            critical = critical and advice != step.action
        if critical and advice and advice not in skills.values():
            skills[t] = advice
    return dict(list(skills.items())[:most])


def most_repeated(trajectory: Trajectory) -> str:
    """The most frequent action, if it was taken more than twice; else empty."""
    most = Counter(step.action for step in trajectory.steps).most_common(1)
    return most[0][0] if most and most[0][1] > 2 else ""


def stop_label(trajectory: Trajectory) -> str:
    """`timeout` at the step limit, else the stop reason."""
    return "timeout" if trajectory.stop is StopReason.STEP_LIMIT else str(trajectory.stop)


@dataclass(frozen=True)
class Lesson:
    """s in h̃ = H(h, s): the text inserted into one prompt."""

    task: str = ""  # after the task statement
    step: str = ""  # right before the request for an action

    def __bool__(self) -> bool:
        return bool(self.task or self.step)


class Teacher(Protocol):
    """Renders the prompts of an episode with lessons inserted."""

    def lessons(self, trajectory: Trajectory) -> Sequence[Sequence[Lesson]]:
        """Per step, the lessons to measure separately, usually one or none."""

    def prompts(self, group: Group, policy: SamplingPolicy) -> list[list[np.ndarray]]:
        """H: the tokens of the prompts with these lessons, for the group's flat steps."""


# Signals of a step: the sums `progress` and `error`, and the amount of each rule that applied.
#
#     {"progress": 1.02, "error": 0.2, "progress.subgoal": 1.0, "progress.hinted_place": 0.02, "error.repeated": 0.2}

PROGRESS, ERROR, ENV = "progress", "error", "env"


def sum_signals(
    progress: Mapping[str, float], errors: Mapping[str, float], env: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Signals of one step from the amount of each rule, without zeros. `env`: the world's own step rewards."""
    signals: dict[str, float] = {}
    for kind, rules in ((PROGRESS, progress), (ERROR, errors), *(((ENV, env),) if env is not None else ())):
        signals[kind] = float(sum(rules.values()))
        signals |= {f"{kind}.{name}": float(worth) for name, worth in rules.items() if worth}
    return signals


class RuleTracker(ABC):
    """Base of trackers whose signals come from two tables, rule -> amount. Their states have a field `fault`: the rule of
    `errors` that the last action broke, or empty."""

    progress: ClassVar[Mapping[str, float]]
    errors: ClassVar[Mapping[str, float]]
    components: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        cls.components = component_names(cls.progress, cls.errors)

    @abstractmethod
    def count(self, before: Any, after: Any) -> Mapping[str, float]:
        """rule of `progress` -> how often it applied in the last update"""

    def signals(self, before: Any, after: Any) -> Mapping[str, float]:
        progress = {rule: self.progress[rule] * times for rule, times in self.count(before, after).items()}
        return sum_signals(progress, {after.fault: self.errors[after.fault]} if after.fault else {})


def score_events(events: Iterable[str], table: Mapping[str, float]) -> dict[str, float]:
    """event -> its amount in `table`, times its number of occurrences"""
    worth: dict[str, float] = {}
    for event in events:
        worth[event] = worth.get(event, 0.0) + table[event]
    return worth


def component_names(progress: Iterable[str], errors: Iterable[str], env: Iterable[str] = ()) -> tuple[str, ...]:
    """Names of all rules, as in `sum_signals`."""
    return tuple(f"{kind}.{name}" for kind, rules in ((PROGRESS, progress), (ERROR, errors), (ENV, env)) for name in rules)
