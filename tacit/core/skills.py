"""What a finished episode teaches (OPID, §3.2), and where such a lesson stands in a prompt.

A(τ) = (s_ep, {s_step,t : t ∈ C})        `Skills`: one for the whole episode, and one for each critical step
h̃ = H(h, s)                              `Lesson`: after the task, or right before the request for an action
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tacit.core.protocols import Tokenizer
from tacit.core.types import Group, Trajectory


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
