"""Credit from scoring completions with a skill in the prompt: OPID's skill shift, and RLSD's modulated credit.

    OPID §3.3   A_skill = log π_old(y | H(h, s), y<) − log π_old(y | h, y<)        per token, both at temperature 1
    RLSD        A_token = A · ((1 − l) + l · clip(exp(sign(A) · A_skill), 1 − ε, 1 + ε))

A_skill is positive where the skill makes the sampled token more likely. If the current weights sampled at temperature 1, the
sampler's log-probabilities are log π_old(y | h, y<) and only the prompts with a skill are scored (OPID). Otherwise the same
engine scores both prompts in the same call. A skill that leaves the prompt unchanged gives exactly zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from tacit.core.credit import Batch, Credit, Rewards
from tacit.core.errors import TacitError
from tacit.core.hindsight import Teacher
from tacit.core.method import CreditTerm, Explained
from tacit.core.protocols import GRADIENTS, SCORING, GradientScorer, LossTerm, Policy, Scorer
from tacit.core.types import Group, IterationInfo, Step


def parse_weight(value: float | str) -> tuple[float, float | None]:
    """(λ, target share of the gradient) from a number or `auto:SHARE`.

    >>> parse_weight(0.001), parse_weight("auto:0.1")
    ((0.001, None), (1.0, 0.1))
    """
    if not isinstance(value, str):
        return value, None
    kind, _, number = value.partition(":")
    try:
        share = float(number)
    except ValueError:
        share = 0.0
    if kind != "auto" or not 0 < share < math.inf:
        raise TacitError(f"skill_weight = {value!r} must be a number, or auto:SHARE with a share above 0, as in auto:0.1.")
    return 1.0, share


@dataclass(frozen=True)
class GradientShare:
    """Norm of the shift's gradient relative to that of the other credit: ‖∇ E[λ A_skill log π]‖ / ‖∇ E[A log π]‖

    The credits' mean magnitudes are no substitute: outcome credit has one sign per episode, so much of its gradient cancels.
    """

    loss: LossTerm  # linear in the advantages, as estimate_gradient_norm needs it
    temperature: float = 1.0
    every: int = 10  # iterations between measurements; 0 is never
    target: float | None = None  # scale λ to reach this share, measured in every iteration
    rows: int = 0  # steps to measure each gradient on; 0 is all

    def measure(
        self, own: Sequence[Credit], others: Sequence[Credit], policy: Policy, info: IterationInfo
    ) -> tuple[float, float] | None:
        """(norm of the shift's gradient, norm of the other credits'). None if not due or if it cannot be measured."""
        due = self.target is not None or (self.every and (info.iteration - 1) % self.every == 0)
        if not due or not others or not isinstance(policy, GradientScorer):
            return None
        batches = [Batch.from_groups([c.group for c in credits], credits, self.temperature) for credits in (own, others)]
        seed = info.derive("gradient share")
        skill, rest = (estimate_gradient_norm(batch, self.loss, policy, self.rows, seed) for batch in batches)
        return skill, rest


def estimate_gradient_norm(batch: Batch, loss: LossTerm, policy: GradientScorer, rows: int, seed: int) -> float:
    """‖g‖, the norm of the batch's gradient, from `rows` of its steps, chosen at random among the steps with credit. Exact with
    `rows` 0, or if there are at most twice as many: the estimate takes two passes, so it would not be cheaper.

    The subset's gradient is too long, because less noise cancels. Its noise is measured with the opposite sign for half of the
    credits: with n of N steps, S² the variance of a step's gradient, and g± the two gradients,

        E‖g₊‖² = ‖g‖² + S² (1/n − 1/N)        E‖g₋‖² = S²/n        so        ‖g‖² ≈ ‖g₊‖² − ‖g₋‖² + ‖g₋‖² n/N

    The first two terms together are the square of the noise-free gradient, so they are cut at 0. `loss` must be a mean over
    steps that is linear in the advantages.
    """
    steps = [i for i, completion in enumerate(batch.completions) if len(completion)]
    credited = np.array([i for i in steps if np.any(batch.advantages[i])], np.int64)
    if not len(credited):
        return 0.0
    scale, count = len(credited) / len(steps), max(2, rows // 2 * 2)
    if not rows or len(credited) <= 2 * count:
        return scale * policy.gradient_norm(batch.select(credited), [loss])
    subset = batch.select(np.random.default_rng(seed).permutation(credited)[:count])
    signs = np.repeat([-1.0, 1.0], count // 2)
    flipped = replace(subset, advantages=[sign * own for sign, own in zip(signs, subset.advantages, strict=True)])
    total, noise = (policy.gradient_norm(part, [loss]) ** 2 for part in (subset, flipped))
    return scale * math.sqrt(max(0.0, total - noise) + noise * count / len(credited))


@dataclass(frozen=True)
class SkillShift(CreditTerm):
    """λ · A_skill"""

    teacher: Teacher
    weight: float = 0.001
    normalise: bool = False  # to mean 0 and standard deviation 1 over all tokens with a skill
    clip: float | None = None  # clip shifts to ± this
    gradient: GradientShare | None = None
    reuse_sampled: bool = False  # take log-probabilities without a skill from the sampler; only for temperature 1
    compares_episodes: ClassVar[bool] = False

    @property
    def needs(self) -> frozenset[str]:
        auto = self.gradient is not None and self.gradient.target is not None
        return frozenset({SCORING, GRADIENTS} if auto else {SCORING})

    def __call__(self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo) -> Explained:
        teacher_prompts = [self.teacher.prompts(group, policy) for group in groups]
        raw = skill_shifts(groups, teacher_prompts, policy, policy.version if self.reuse_sampled else None)
        masks = [
            np.repeat([bool(own) for own in prompts], group.tokens_per_step) if len(prompts) else np.zeros(0, bool)
            for group, prompts in zip(groups, teacher_prompts, strict=True)
        ]
        shifts = raw
        skilled = _concatenate([shift_T[mask_T] for shift_T, mask_T in zip(raw, masks, strict=True)])
        if self.normalise and len(skilled):
            mean, std = skilled.mean(), skilled.std()
            shifts = [
                np.where(mask_T, (shift_T - mean) / (std + 1e-6), 0.0) for shift_T, mask_T in zip(raw, masks, strict=True)
            ]
        if self.clip is not None:
            shifts = [np.clip(shift_T, -self.clip, self.clip) for shift_T in shifts]
        credits = [Credit(group, self.weight * shift) for group, shift in zip(groups, shifts, strict=True)]
        decode = cache(lambda token: policy.decode(np.array([token])))  # few distinct tokens
        marks = [self._marks(group, shift, decode) for group, shift in zip(groups, shifts, strict=True)]
        return Explained(credits, _metrics(raw, masks, credits), marks)

    def weigh(self, own: Sequence[Credit], others: Sequence[Credit], policy: Policy, info: IterationInfo) -> Explained:
        """Measure the share of the gradient and, with a target, scale the credits to it."""
        assert isinstance(own, Explained)
        lengths = self.gradient.measure(own, others, policy, info) if self.gradient else None
        if self.gradient is None or lengths is None:
            return own
        skill, rest = lengths
        target = self.gradient.target
        factor = 1.0 if target is None else target * rest / skill if skill else 0.0
        metrics = {**own.metrics, "skill_shift/weight": self.weight * factor}
        metrics["skill_shift/credit_magnitude"] *= factor
        if rest:
            metrics["skill_shift/gradient_share"] = factor * skill / rest
        return Explained([factor * credit for credit in own], metrics, own.marks)

    def _marks(self, group: Group, shift_T: np.ndarray, decode: Callable[[int], str]) -> dict[str, list[Any]]:
        """Marks for the records, per step: its skills, the sum of its shifts, and every token with its shift."""
        lessons = [lesson for trajectory in group.trajectories for lesson in self.teacher.lessons(trajectory)]
        shifts = np.split(shift_T, np.cumsum(group.tokens_per_step)[:-1])
        marks: dict[str, list[Any]] = {"skills": [], "skill_shift": [], "shift_by_token": []}
        for step, skills, own_T in zip(group.steps, lessons, shifts, strict=True):
            words = [decode(token) for token in step.completion.tokens.tolist()] if skills else []
            marks["skills"].append(
                [{"task": lesson.task} if lesson.task else {"step": lesson.step} for lesson in skills] or None
            )
            marks["skill_shift"].append(float(own_T.sum()))
            marks["shift_by_token"].append([[word, round(float(x), 4)] for word, x in zip(words, own_T, strict=False)] or None)
        return marks


def skill_shifts(
    groups: Sequence[Group],
    teacher_prompts: Sequence[Sequence[Sequence[np.ndarray]]],
    scorer: Scorer,
    version: int | None = None,
) -> list[np.ndarray]:
    """[T] A_skill of each group, summed over the skills of a step; exactly zero if a skill leaves the prompt unchanged.
    `teacher_prompts`: per group and step, the prompts with a skill.

    Completions that this `version` of the weights sampled are not scored again without a skill."""
    prompts: list[np.ndarray] = []
    completions: list[np.ndarray] = []

    def score(prompt: np.ndarray, step: Step) -> int:
        prompts.append(prompt)
        completions.append(step.completion.tokens)
        return len(prompts) - 1

    steps = [[np.zeros(count) for count in group.tokens_per_step] for group in groups]
    changes: list[tuple[np.ndarray, np.ndarray | int, list[int]]] = []  # (shift, plain: values or row, rows with a skill)
    for group, group_prompts, shifts in zip(groups, teacher_prompts, steps, strict=True):
        for step, others, shift_T in zip(group.steps, group_prompts, shifts, strict=True):
            changed = [other for other in others if not np.array_equal(other, step.prompt_tokens)]
            if changed and len(step.completion.tokens):
                known = version is not None and step.completion.version == version
                plain = step.completion.logprobs if known else score(step.prompt_tokens, step)
                changes.append((shift_T, plain, [score(other, step) for other in changed]))
    scores = [np.asarray(one, np.float64) for one in (scorer.logprobs(prompts, completions, 1.0) if prompts else [])]
    for shift_T, plain, rows in changes:
        plain_T = scores[plain] if isinstance(plain, int) else np.asarray(plain, np.float64)
        for row in rows:
            shift_T += scores[row] - plain_T
    return [np.concatenate(own) if own else np.zeros(0) for own in steps]


def _concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if len(arrays) else np.zeros(0)


def _metrics(shifts: Sequence[np.ndarray], masks: Sequence[np.ndarray], credits: Sequence[Credit]) -> dict[str, float]:
    """The quantities of OPID's Figure 8, and the share of tokens with a skill."""
    mask_T, credit_T = _concatenate(masks).astype(bool), _concatenate([c.tokens_T for c in credits])
    skilled = _concatenate(shifts)[mask_T]
    return {
        "skill_shift/with_skill": float(mask_T.mean()) if len(mask_T) else 0.0,
        "skill_shift/mean": float(skilled.mean()) if len(skilled) else 0.0,
        "skill_shift/magnitude": float(np.abs(skilled).mean()) if len(skilled) else 0.0,
        "skill_shift/credit_magnitude": float(np.abs(credit_T).mean()) if len(credit_T) else 0.0,
    }


@dataclass(frozen=True)
class ModulatedCredit(CreditTerm):
    """RLSD: the outcome sets the sign of the credit, the teacher its size. If the teacher is the student, A is unchanged."""

    credit: CreditTerm  # A
    teacher: Teacher
    share: float = 0.5  # l at the start
    bound: float = 0.2  # ε
    until: int = 100  # iterations over which l falls linearly to 0
    needs: ClassVar[frozenset[str]] = frozenset({SCORING})

    def __call__(self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo) -> Explained:
        plain = self.credit(groups, rewards, policy, info)
        metrics = plain.metrics if isinstance(plain, Explained) else {}
        share = self.share * max(0.0, 1.0 - (info.iteration - 1) / self.until)
        if not share:
            return Explained(list(plain), {**metrics, "modulation": 0.0})
        shifts = skill_shifts(groups, [self.teacher.prompts(group, policy) for group in groups], policy)
        credits = [
            Credit(group, modulate(own.tokens_T, shift_T, share, self.bound))
            for group, own, shift_T in zip(groups, plain, shifts, strict=True)
        ]
        return Explained(credits, {**metrics, "modulation": share})


def modulate(credit_T: np.ndarray, shift_T: np.ndarray, share: float, bound: float) -> np.ndarray:
    """[T] A · ((1 − l) + l · clip(exp(sign(A) · shift), 1 − ε, 1 + ε)), with l = `share` and ε = `bound`."""
    factor_T = np.clip(np.exp(np.sign(credit_T) * shift_T), 1 - bound, 1 + bound)
    return credit_T * ((1 - share) + share * factor_T)
