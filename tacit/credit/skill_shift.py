"""The skill shift (OPID, §3.3): what knowing the skill would have changed about the very tokens that were written.

    A_skill = log π_old(y | H(h, s), y<) − log π_old(y | h, y<)          per token, both at temperature 1

Positive where the skill makes the token likelier: then it is what the skill would have one do. Both terms are fresh passes of
the same engine, so that a skill that changes nothing gives exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.hindsight import Teacher
from tacit.core.method import CreditTerm, Explained
from tacit.core.protocols import SCORING, Policy, Scorer
from tacit.core.types import Group, IterationInfo


@dataclass(frozen=True)
class SkillShift(CreditTerm):
    """λ · A_skill"""

    teacher: Teacher
    weight: float = 0.001
    normalise: bool = False
    """to mean 0 and deviation 1 over all tokens that have a skill"""
    clip: float | None = None
    """cut shifts to ± this"""
    needs: ClassVar[frozenset[str]] = frozenset({SCORING})
    compares_episodes: ClassVar[bool] = False

    def __call__(self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo) -> Explained:
        taught = [self.teacher.prompts(group, policy) for group in groups]
        raw = skill_shifts(groups, taught, policy)
        told = [_tokens_with_skill(group, prompts) for group, prompts in zip(groups, taught, strict=True)]
        shifts = self._bounded(raw, told)
        credits = [Credit(group, self.weight * shift) for group, shift in zip(groups, shifts, strict=True)]
        spell = cache(lambda token: policy.decode(np.array([token])))  # a batch has far fewer tokens than places for them
        marks = [self._marks(group, shift, spell) for group, shift in zip(groups, shifts, strict=True)]
        return Explained(credits, _metrics(raw, told, credits), marks)

    def _bounded(self, shifts: list[np.ndarray], told: list[np.ndarray]) -> list[np.ndarray]:
        known = _joined([shift[mask] for shift, mask in zip(shifts, told, strict=True)])
        if self.normalise and len(known):
            mean, std = known.mean(), known.std()
            shifts = [np.where(mask, (shift - mean) / (std + 1e-6), 0.0) for shift, mask in zip(shifts, told, strict=True)]
        return shifts if self.clip is None else [np.clip(shift, -self.clip, self.clip) for shift in shifts]

    def _marks(self, group: Group, shift_T: np.ndarray, spell: Callable[[int], str]) -> dict[str, list[Any]]:
        """For people to look at: what each step was told, and every token with its shift."""
        lessons = [lesson for trajectory in group.trajectories for lesson in self.teacher.lessons(trajectory)]
        parts = np.split(shift_T, np.cumsum(group.tokens_per_step)[:-1])
        shown: dict[str, list[Any]] = {"skills": [], "skill_shift": [], "shift_by_token": []}
        for step, told, own in zip(group.steps, lessons, parts, strict=True):
            words = [spell(token) for token in step.completion.tokens.tolist()] if told else []
            shown["skills"].append([{"task": lesson.task} if lesson.task else {"step": lesson.step} for lesson in told] or None)
            shown["skill_shift"].append(float(own.sum()))
            shown["shift_by_token"].append([[word, round(float(x), 4)] for word, x in zip(words, own, strict=False)] or None)
        return shown


def skill_shifts(groups: Sequence[Group], taught: Sequence[Sequence[Sequence[np.ndarray]]], scorer: Scorer) -> list[np.ndarray]:
    """Per group, for all its tokens: the sum of the shifts of each step's prompts. Zero where there is no skill, and exactly
    where the prompt with it is the prompt without it."""
    plain: dict[tuple[int, int], int] = {}
    prompts: list[np.ndarray] = []
    completions: list[np.ndarray] = []
    pairs: list[tuple[int, int, int]] = []
    for g, (group, told) in enumerate(zip(groups, taught, strict=True)):
        for n, (step, others) in enumerate(zip(group.steps, told, strict=True)):
            for other in others:
                if not len(step.completion.tokens) or np.array_equal(other, step.prompt_tokens):
                    continue
                if (g, n) not in plain:
                    plain[g, n] = len(prompts)
                    prompts.append(step.prompt_tokens)
                    completions.append(step.completion.tokens)
                pairs.append((g, n, len(prompts)))
                prompts.append(other)
                completions.append(step.completion.tokens)
    scores = scorer.logprobs(prompts, completions, 1.0) if prompts else []
    steps = [[np.zeros(count) for count in group.tokens_per_step] for group in groups]
    for g, n, row in pairs:
        steps[g][n] += np.asarray(scores[row], np.float64) - np.asarray(scores[plain[g, n]], np.float64)
    return [np.concatenate(own) if own else np.zeros(0) for own in steps]


def _tokens_with_skill(group: Group, prompts: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Which tokens have a skill, [T]."""
    return np.repeat([bool(own) for own in prompts], group.tokens_per_step) if len(prompts) else np.zeros(0, bool)


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if len(arrays) else np.zeros(0)


def _metrics(shifts: Sequence[np.ndarray], told: Sequence[np.ndarray], credits: Sequence[Credit]) -> dict[str, float]:
    """What the paper's Figure 8 shows, and how much of the batch has a skill at all."""
    flat_T, mask_T, given_T = _joined(shifts), _joined(told).astype(bool), _joined([c.tokens_T for c in credits])
    known = flat_T[mask_T]
    return {
        "skill_shift/told": float(mask_T.mean()) if len(mask_T) else 0.0,
        "skill_shift/mean": float(known.mean()) if len(known) else 0.0,
        "skill_shift/magnitude": float(np.abs(known).mean()) if len(known) else 0.0,
        "skill_shift/credit_magnitude": float(np.abs(given_T).mean()) if len(given_T) else 0.0,
    }


# Credit whose size follows a teacher, and whose sign stays the outcome's (RLSD).
#
#     A_token = A · ((1 − l) + l · clip(exp(sign(A) · (log q(a) − log p(a))), 1 − ε, 1 + ε))        l: decays over the run
#
# A token of a good episode counts more where the teacher finds it likelier, of a bad one where it finds it less likely. A
# teacher that is the student leaves A as it is.


@dataclass(frozen=True)
class ModulatedCredit(CreditTerm):
    credit: CreditTerm
    """A"""
    teacher: Teacher
    share: float = 0.5
    """l at the start"""
    bound: float = 0.2
    """ε"""
    until: int = 100
    """iterations after which l is 0, having fallen linearly"""
    needs: ClassVar[frozenset[str]] = frozenset({SCORING})

    def __call__(self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo) -> Explained:
        plain = self.credit(groups, rewards, policy, info)
        known = plain.metrics if isinstance(plain, Explained) else {}
        share = self.share * max(0.0, 1.0 - (info.iteration - 1) / self.until)
        if not share:
            return Explained(list(plain), {**known, "modulation": 0.0})
        shifts = skill_shifts(groups, [self.teacher.prompts(group, policy) for group in groups], policy)
        credits = [
            Credit(group, modulate(own.tokens_T, shift_T, share, self.bound))
            for group, own, shift_T in zip(groups, plain, shifts, strict=True)
        ]
        return Explained(credits, {**known, "modulation": share})


def modulate(credit_T: np.ndarray, ahead_T: np.ndarray, share: float, bound: float) -> np.ndarray:
    """`ahead` is log q(a) − log p(a)."""
    factor_T = np.clip(np.exp(np.sign(credit_T) * ahead_T), 1 - bound, 1 + bound)
    return credit_T * ((1 - share) + share * factor_T)
