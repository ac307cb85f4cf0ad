"""Learning from oneself with a skill in the prompt: the teacher is the same policy, told what to do (§A.1 of OPID).

p: π_θ(· | h), with gradient.   q: the teacher's, π(· | H(h, s)), without.   a: the token that was written.

    forward    KL(q ‖ p) = Σ q (log q − log p)
    reverse    KL(p ‖ q) = Σ p (log p − log q)
    jsd        α KL(q ‖ m) + (1 − α) KL(p ‖ m),  m = α q + (1 − α) p
    sampled    ρ (log p − log q)(a), its score-function gradient: an estimate of the reverse KL's from one token
    top-K      the same over the K likeliest tokens of p or of q, renormalised
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from tacit.core.credit import Per, Rewards
from tacit.core.hindsight import Teacher
from tacit.core.method import Column
from tacit.core.protocols import SCORING, TEACHER, Policy, TokenView
from tacit.core.types import Group, IterationInfo
from tacit.losses.surrogates import mean_over

if TYPE_CHECKING:
    import torch

Kind = Literal["forward", "reverse", "jsd"]
Support = Literal["student", "teacher"]


@dataclass(frozen=True)
class TeacherPrompts(Column):
    """H(h, s) of every step; the plain prompt where there is no skill: then the teacher knows no more than its student."""

    teacher: Teacher
    name: ClassVar[str] = "taught"
    per: ClassVar[Per] = "prompt"

    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo | None = None
    ) -> list[np.ndarray]:
        return teacher_prompts(groups, self.teacher, policy)


@dataclass(frozen=True)
class TeacherLogprobs(Column):
    """log q(a) of every sampled token, before the update, at the temperature the policy is measured at."""

    teacher: Teacher
    temperature: float = 1.0
    name: ClassVar[str] = "teacher_logprobs"
    per: ClassVar[Per] = "token"
    needs: ClassVar[frozenset[str]] = frozenset({SCORING})

    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo | None = None
    ) -> list[np.ndarray]:
        completions = [step.completion.tokens for group in groups for step in group.steps]
        return policy.logprobs(teacher_prompts(groups, self.teacher, policy), completions, self.temperature)


def teacher_prompts(groups: Sequence[Group], teacher: Teacher, policy: Policy) -> list[np.ndarray]:
    found = []
    for group in groups:
        for step, told in zip(group.steps, teacher.prompts(group, policy), strict=True):
            found.append(told[0] if told else step.prompt_tokens)
    return found


@dataclass(frozen=True)
class Divergence:
    """w · E[D(q, p)] over whole distributions. Zero, and without gradient, where the teacher is the student."""

    kind: Kind = "reverse"
    weight: float = 1.0
    alpha: float = 0.5
    """of the jsd"""
    top_k: int = 0
    """0: the whole vocabulary"""
    support: Support = "student"
    """whose K likeliest tokens"""
    needs: ClassVar[frozenset[str]] = frozenset({TEACHER, "taught"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        assert view.beside_teacher is not None
        apart_T = view.beside_teacher(self.between)
        return self.weight * mean_over(apart_T, view), {"teacher_divergence": apart_T.detach().sum()}

    def between(self, student_CV: torch.Tensor, teacher_CV: torch.Tensor) -> torch.Tensor:
        """[C] of log-distributions."""
        p, q = self._supported(student_CV, teacher_CV) if self.top_k else (student_CV, teacher_CV)
        if self.kind == "forward":
            return (q.exp() * (q - p)).sum(-1)
        if self.kind == "reverse":
            return (p.exp() * (p - q)).sum(-1)
        m = (q + math.log(self.alpha)).logaddexp(p + math.log1p(-self.alpha))
        return self.alpha * (q.exp() * (q - m)).sum(-1) + (1 - self.alpha) * (p.exp() * (p - m)).sum(-1)

    def _supported(self, p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = (p.detach() if self.support == "student" else q).topk(min(self.top_k, p.shape[-1]), -1).indices
        p, q = p.gather(-1, chosen), q.gather(-1, chosen)
        return p - p.logsumexp(-1, keepdim=True), q - q.logsumexp(-1, keepdim=True)


@dataclass(frozen=True)
class SampledReverseKL:
    """w · E[ρ · sg(log p − log q)(a)]: the value's gradient is that of KL(p ‖ q), from the tokens that were written."""

    weight: float = 1.0
    needs: ClassVar[frozenset[str]] = frozenset({"teacher_logprobs"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        apart_T = view.logprobs_T.detach() - view.tokens["teacher_logprobs"]
        ratio_T = (view.logprobs_T - view.behaviour_T).exp()
        return self.weight * mean_over(ratio_T * apart_T, view), {"teacher_divergence": apart_T.sum()}


@dataclass(frozen=True)
class GatedLikelihood:
    """w · E[sg(σ(β d)) · d],  d = log q(a) − log p(a)                                        (SDAR, as released)

    The gate has no gradient and d's is that of −log p: every token becomes likelier, those the teacher prefers more so, none
    less likely. So a teacher that is the student still pushes, by half (σ(0)); β = 0 is what was released as GRPO+OPSD.
    """

    weight: float = 0.01
    beta: float = 5.0
    needs: ClassVar[frozenset[str]] = frozenset({"teacher_logprobs"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        ahead_T = view.tokens["teacher_logprobs"] - view.logprobs_T
        gate_T = (self.beta * ahead_T.detach()).sigmoid()
        stats = {"teacher_ahead": ahead_T.detach().sum(), "gate": gate_T.sum()}
        return self.weight * mean_over(gate_T * ahead_T, view), stats


@dataclass(frozen=True)
class SkillK3:
    """w · E[ρ (exp(−e) − 1 + e)],  e = log p(a) − log q(a)                                   (Skill-SD, as released)

    k3 of KL(p ‖ q), importance-weighted; ρ is part of the gradient. At e = 0 both value and gradient are zero.
    """

    weight: float = 0.001
    needs: ClassVar[frozenset[str]] = frozenset({"teacher_logprobs"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        e_T = view.logprobs_T - view.tokens["teacher_logprobs"]
        # the bounds are those of the reference implementation: neither factor may overflow
        ratio_T = (view.logprobs_T - view.behaviour_T).clamp(max=10.0).exp()
        k3_T = (-e_T).clamp(max=20.0).exp() - 1 + e_T
        return self.weight * mean_over(ratio_T * k3_T, view), {"teacher_divergence": k3_T.detach().sum()}
