"""Self-distillation losses: the teacher is the same policy with a skill in its prompt (OPID, §A.1).

p: π_θ(· | h), with gradient.   q: the teacher π(· | H(h, s)), without gradient.   a: the sampled token.

    forward    KL(q ‖ p) = Σ q (log q − log p)
    reverse    KL(p ‖ q) = Σ p (log p − log q)
    jsd        α KL(q ‖ m) + (1 − α) KL(p ‖ m),  m = α q + (1 − α) p
    sampled    ρ sg(log p − log q)(a): one-token estimate of the reverse KL's gradient
    top-K      forward, reverse or jsd over the K most likely tokens of p or q, renormalized
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
    """H(h, s) of every step; the plain prompt if the step has no skill."""

    teacher: Teacher
    name: ClassVar[str] = "teacher_prompts"
    per: ClassVar[Per] = "prompt"

    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo | None = None
    ) -> list[np.ndarray]:
        return teacher_prompts(groups, self.teacher, policy)


@dataclass(frozen=True)
class TeacherLogprobs(Column):
    """log q(a) of every sampled token, before the update."""

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
    """The teacher's prompt of every step: with the step's first skill, or the plain prompt if it has none."""
    prompts = []
    for group in groups:
        for step, with_skill in zip(group.steps, teacher.prompts(group, policy), strict=True):
            prompts.append(with_skill[0] if with_skill else step.prompt_tokens)
    return prompts


@dataclass(frozen=True)
class Divergence:
    """w · E[D(q, p)] over full or top-K distributions. Value and gradient are zero if the teacher equals the student."""

    kind: Kind = "reverse"
    weight: float = 1.0
    alpha: float = 0.5  # α of the jsd
    top_k: int = 0  # 0: the whole vocabulary
    support: Support = "student"  # top-K: the K most likely tokens of the student or the teacher
    needs: ClassVar[frozenset[str]] = frozenset({TEACHER, TeacherPrompts.name})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        assert view.compare_with_teacher is not None
        divergence_T = view.compare_with_teacher(self.between)
        return self.weight * mean_over(divergence_T, view), {"teacher_divergence": divergence_T.detach().sum()}

    def between(self, student_CV: torch.Tensor, teacher_CV: torch.Tensor) -> torch.Tensor:
        """[C] divergence of log-distributions [C, V]."""
        p, q = student_CV, teacher_CV
        if self.top_k:
            top = (p.detach() if self.support == "student" else q).topk(min(self.top_k, p.shape[-1]), -1).indices
            p, q = p.gather(-1, top), q.gather(-1, top)
            p, q = p - p.logsumexp(-1, keepdim=True), q - q.logsumexp(-1, keepdim=True)
        if self.kind == "forward":
            return (q.exp() * (q - p)).sum(-1)
        if self.kind == "reverse":
            return (p.exp() * (p - q)).sum(-1)
        m = (q + math.log(self.alpha)).logaddexp(p + math.log1p(-self.alpha))
        return self.alpha * (q.exp() * (q - m)).sum(-1) + (1 - self.alpha) * (p.exp() * (p - m)).sum(-1)


@dataclass(frozen=True)
class SampledReverseKL:
    """w · E[ρ · sg(log p − log q)(a)]: its gradient estimates that of KL(p ‖ q) from the sampled tokens."""

    weight: float = 1.0
    needs: ClassVar[frozenset[str]] = frozenset({"teacher_logprobs"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        difference_T = view.logprobs_T.detach() - view.tokens["teacher_logprobs"]
        ratio_T = (view.logprobs_T - view.behavior_T).exp()
        return self.weight * mean_over(ratio_T * difference_T, view), {"teacher_divergence": difference_T.sum()}


@dataclass(frozen=True)
class GatedLikelihood:
    """w · E[sg(σ(β d)) · d],  d = log q(a) − log p(a)                                        (SDAR, as released)

    The gradient is that of −gate · log p: it raises the probability of every sampled token, most where the teacher prefers it.
    If the teacher equals the student, the gate is σ(0) = ½. β = 0 is GRPO+OPSD as released.
    """

    weight: float = 0.01
    beta: float = 5.0
    needs: ClassVar[frozenset[str]] = frozenset({"teacher_logprobs"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        d_T = view.tokens["teacher_logprobs"] - view.logprobs_T
        gate_T = (self.beta * d_T.detach()).sigmoid()
        stats = {"teacher_ahead": d_T.detach().sum(), "gate": gate_T.sum()}
        return self.weight * mean_over(gate_T * d_T, view), stats


@dataclass(frozen=True)
class SkillK3:
    """w · E[ρ (exp(−e) − 1 + e)],  e = log p(a) − log q(a)                                   (Skill-SD, as released)

    k3 estimator of KL(p ‖ q), importance-weighted; the gradient flows through ρ too. Value and gradient are zero at e = 0.
    """

    weight: float = 0.001
    needs: ClassVar[frozenset[str]] = frozenset({"teacher_logprobs"})

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        e_T = view.logprobs_T - view.tokens["teacher_logprobs"]
        # Bounds of the reference implementation, against overflow.
        ratio_T = (view.logprobs_T - view.behavior_T).clamp(max=10.0).exp()
        k3_T = (-e_T).clamp(max=20.0).exp() - 1 + e_T
        return self.weight * mean_over(ratio_T * k3_T, view), {"teacher_divergence": k3_T.detach().sum()}
