"""Helpers that run a tracker over whole episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.worlds import get_environment


def fold(task: Task, actions: Sequence[str]):
    """(last tracker state, signals of every step) along the actions."""
    environment = get_environment(task.world)
    tracker, world = environment.tracker, environment.make()
    state = tracker.start(task, world.reset(task))
    signals = []
    for action in actions:
        after = tracker.update(state, action, world.step(action))
        signals.append(tracker.signals(state, after))
        state = after
    return state, signals


def some_of_all(environment: Environment, splits: Sequence[str], count: int) -> list[Task]:
    """`count` tasks of these splits that cover all families."""
    tasks = [task for split in splits for task in environment.tasks(split, count // len(splits) + 1, 11)][:count]
    assert len(tasks) == count and {task.family for task in tasks} == set(environment.families)
    return tasks


def rules_met(tasks: Sequence[Task], check: Callable[[Task, float, Random], tuple[bool, Counter[str]]]) -> set[str]:
    """Names of the signals that occurred in episodes with 0, 30 or 60% expert moves."""
    met: set[str] = set()
    for i, task in enumerate(tasks):
        _, sums = check(task, (i % 3) * 0.3, Random(i))
        met.update(name for name, total in sums.items() if total)
    return met
