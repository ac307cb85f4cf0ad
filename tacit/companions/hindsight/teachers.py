"""Whose lessons: those of hindsight, routed to the steps they are for, or a handbook's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tacit.companions.hindsight.companion import Hindsight
from tacit.contexts.notes import teach
from tacit.core.protocols import Tokenizer
from tacit.core.skills import Lesson, Skills
from tacit.core.types import Group, Trajectory
from tacit.rollout.fitting import fit

Routing = Literal["critical_first", "additive", "episode", "step"]


def route(skills: Skills, t: int, routing: Routing) -> tuple[Lesson, ...]:
    """What is told at step t.

    critical_first   the step's skill where it has one, else the episode's     s_t = s_step,t if t ∈ C else s_ep
    additive         the episode's, and beside it the step's: two shifts that add up
    episode, step    one level alone
    """
    episode = (Lesson(task=skills.episode),) if skills.episode else ()
    step = (Lesson(step=skills.steps[t]),) if t in skills.steps else ()
    if routing == "critical_first":
        return step or episode
    return {"additive": episode + step, "episode": episode, "step": step}[routing]


@dataclass(frozen=True)
class Routed:
    """Hindsight's skills."""

    hindsight: Hindsight = field(compare=False)
    routing: Routing = "critical_first"

    def lessons(self, trajectory: Trajectory) -> Sequence[tuple[Lesson, ...]]:
        skills = self.hindsight.skills(trajectory)
        return [route(skills, t, self.routing) for t in range(len(trajectory))]

    def prompts(self, group: Group, tokenizer: Tokenizer) -> list[list[np.ndarray]]:
        return taught_prompts(group, self.lessons, tokenizer)


@dataclass(frozen=True)
class Handbook:
    """A skill for every family, the same at every step: retrieved, not looked back for."""

    pages: Mapping[str, str]

    def page(self, family: str) -> str:
        """What holds for all, and what holds for this family."""
        return "\n".join(text for name in dict.fromkeys(("", family)) if (text := self.pages.get(name, "")))

    def lessons(self, trajectory: Trajectory) -> Sequence[tuple[Lesson, ...]]:
        page = self.page(trajectory.task.family)
        return [(Lesson(task=page),) if page else ()] * len(trajectory)

    def prompts(self, group: Group, tokenizer: Tokenizer) -> list[list[np.ndarray]]:
        return taught_prompts(group, self.lessons, tokenizer)


def taught_prompts(
    group: Group, lessons: Callable[[Trajectory], Sequence[Sequence[Lesson]]], tokenizer: Tokenizer
) -> list[list[np.ndarray]]:
    """H(h, s) for every step: history gives way from its oldest end, the skill and the observation never. A prompt that still
    does not fit is left out."""
    found = []
    for trajectory in group.trajectories:
        for step, told in zip(trajectory.steps, lessons(trajectory), strict=True):
            fitted = [fit(teach(step.prompt, lesson), tokenizer, len(step.completion.tokens)) for lesson in told]
            found.append([tokens for _, tokens, fits in fitted if fits])
    return found
