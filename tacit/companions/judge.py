"""LLM judge: a model grades every episode by a rubric, and the grade becomes a reward.

    r_T ← r_T + w · grade / 10              grade in 0 … 10, by a policy that is not trained

The judge grades each distinct episode once, in `observe`. Every answer is cached on disk, so a killed run asks nothing twice
and resumes with the same grades. An unreadable grade counts as the mean of its group and favors no episode. Tokens are counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from tacit.companions.answers import Answer, AnswerCache, answer_key, ask_all
from tacit.core.credit import Rewards
from tacit.core.method import Companion, RewardTerm
from tacit.core.protocols import Policy, Request, Sampling
from tacit.core.seeds import derive
from tacit.core.types import Group, IterationInfo, Prompt, Trajectory
from tacit.rollout.encoding import fit_prompt

MAX_GRADE = 10.0
REQUEST = """Grade the agent by the rubric, from 0 (worst) to 10 (best). Give your reasons in a sentence or two, then end with
grade: N"""
_GRADE = re.compile(r"\bgrade\b[^\w\n-]{0,6}(\d+(?:\.\d+)?)", re.IGNORECASE)


@dataclass
class EpisodeJudge(RewardTerm, Companion):
    """A companion and a reward term in one."""

    rubric: str
    open_judge: Callable[[], Policy] = field(compare=False)
    cache_dir: Path = field(compare=False)  # for answers
    weight: float = 1.0
    tokens: int = 256  # maximum length of an answer
    name = "judge"
    read_in_rollouts: ClassVar[bool] = False
    _grades: dict[int, float] = field(default_factory=dict, init=False, compare=False, repr=False)
    """id(trajectory) -> grade, of this iteration"""

    @cached_property
    def _answers(self) -> AnswerCache:
        """Opened on first use, so that building a method opens nothing."""
        return AnswerCache(self.cache_dir)

    def observe(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        before, answers = len(self._answers), self._ask(trajectories, info)
        new_answers = list(self._answers.values())[before:]
        self._grades = {}
        for group in groups:
            grades = {id(t): grade for t in group.trajectories if (grade := parse_grade(answers[id(t)].text)) is not None}
            mean = float(np.mean(list(grades.values()))) if grades else 0.0
            self._grades |= {id(t): grades.get(id(t), mean) for t in group.trajectories}
        unreadable = sum(parse_grade(answers[id(t)].text) is None for t in trajectories)
        return {
            "judge_grade": float(np.mean(list(self._grades.values()))) if self._grades else 0.0,
            "judge_unread": unreadable / len(trajectories) if trajectories else 0.0,
            "judge_asked": float(len(new_answers)),
            "judge_prompt_tokens": float(sum(a.read for a in new_answers)),
            "judge_completion_tokens": float(sum(a.written for a in new_answers)),
        }

    def __call__(self, groups: Sequence[Group], info: IterationInfo | None = None) -> list[Rewards]:
        return [
            Rewards.at_the_end(g, self.weight / MAX_GRADE * np.array([self._grades[id(t)] for t in g.trajectories]))
            for g in groups
        ]

    def _ask(self, trajectories: Sequence[Trajectory], info: IterationInfo) -> dict[int, Answer]:
        """id(trajectory) -> answer."""
        judge = self.open_judge()
        digest = judge.digest()
        keys: dict[int, str] = {}
        questions: dict[str, Request] = {}
        for trajectory in trajectories:
            prompt = render_question(self.rubric, trajectory)
            key = keys[id(trajectory)] = answer_key(digest, self.tokens, prompt.text)
            if key not in self._answers and key not in questions:
                _, tokens, _ = fit_prompt(prompt, judge, self.tokens)
                questions[key] = Request(tokens, derive(info.seed, "judge", key))
        ask_all(judge, Sampling(temperature=0.0, max_tokens=self.tokens), questions, self._answers)
        return {identity: self._answers.get(key) or Answer("", 0, 0) for identity, key in keys.items()}


def render_question(rubric: str, trajectory: Trajectory) -> Prompt:
    """The judge's prompt. The oldest turns of a long episode are dropped, as in any prompt."""
    turns = tuple(
        f"Turn {number}. It saw: {step.observation.text}\nIt did: {step.action}"
        for number, step in enumerate(trajectory.steps, start=1)
    )
    ended = "It succeeded." if trajectory.success else f"It did not succeed ({trajectory.stop.value})."
    return Prompt(
        task=f"You judge what an agent did.\nRubric: {rubric.strip()}\nIts task: {trajectory.task.goal}",
        history=turns,
        now=f"In the end it saw: {trajectory.final.text}\n{ended}",
        request=REQUEST,
        separator="\n\n",
    )


def parse_grade(text: str) -> float | None:
    """The last grade in an answer, such as 7.0 in `Slow but right. grade: 7`; None if there is none in 0 … 10."""
    grades = _GRADE.findall(text)
    grade = float(grades[-1]) if grades else -1.0
    return grade if 0 <= grade <= MAX_GRADE else None
