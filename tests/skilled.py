"""Trajectories whose skills are the letters of a text, for tests of code that reads behavior as skills."""

from __future__ import annotations

import numpy as np

from tacit.core.types import Completion, Group, Observation, Prompt, Step, StopReason, Task, Trajectory
from tacit.core.world import Alphabet

ABC = Alphabet(("A", "B", "C"), lambda t: tuple(step.action for step in t.steps if step.valid))


def step(action: str, valid: bool = True, effective: bool = True) -> Step:
    completion = Completion(np.zeros(1, np.int64), np.zeros(1), action, "stop")
    return Step(Observation("here"), Prompt("task", "here"), np.zeros(1, np.int64), completion, action, valid, effective)


def episode(skills: str, success: bool = True, task: Task | None = None) -> Trajectory:
    """`episode("AB-C")` takes A, B, an invalid action, and C."""
    steps = tuple(step(letter, valid=letter != "-") for letter in skills)
    stop = StopReason.SUCCESS if success else StopReason.STEP_LIMIT
    task = task or Task("toy", "toy/0", "only", "train", 0, "do it")
    return Trajectory(task, steps, success, float(success), stop, Observation("end"))


def group(*trajectories: Trajectory) -> Group:
    return Group(trajectories[0].task, trajectories)


def won(*texts: str) -> Group:
    return group(*(episode(text) for text in texts))
