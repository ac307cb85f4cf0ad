"""Self-distillation: the teacher is the policy itself with a skill of the handbook in its prompt.

    p = π_θ(· | h)      q = sg π(· | H(h, s))      h: prompt, s: skill, a: written token

    opsd        L = E[D(q, p)] + β KL(π ‖ π_ref)                                  Zhao et al., 2026
    grpo_opsd   L = L_GRPO + w E[D(q, p)]
    skill_sd    L = L_GRPO + w E[ρ (exp(−e) − 1 + e)],  e = (log p − log q)(a)    Wang et al., 2026
    sdar        L = L_GRPO + w E[sg(σ(β d)) · d],       d = (log q − log p)(a)    Lu et al., 2026
    skill_grpo  GRPO with s in the prompt; skill_prompt only evaluates it
    rlsd        A_token = A_ep · ((1 − l) + l · clip(exp(sign(A_ep) · d), 1 − ε, 1 + ε))    Yang et al., 2026

The losses are in losses/distillation.py, rlsd's credit in credit/skill_shift.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tacit.companions.hindsight import Handbook, HandbookConditions, load_handbook
from tacit.core.bounds import AtLeastOne, Count, InnerShare, NotNegative, Share
from tacit.core.method import Part, Resources, Schedule, adds, replaces
from tacit.core.world import Environment
from tacit.credit.episode import EpisodeRelative
from tacit.credit.skill_shift import ModulatedCredit
from tacit.losses.distillation import (
    Divergence,
    GatedLikelihood,
    SampledReverseKL,
    SkillK3,
    Support,
    TeacherLogprobs,
    TeacherPrompts,
)
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class HandbookMethod(GRPO):
    """GRPO with a handbook of skills; the base of the methods below."""

    handbook: str = ""
    """skills by family: a TOML file, or a directory as SDAR released; empty: the world's own"""

    def teacher(self, world: Environment) -> Handbook:
        return load_handbook(world, self.handbook)

    def add_teacher_logprobs(self, world: Environment) -> Part:
        """log q(a) of every written token"""
        return adds("columns", "teacher", TeacherLogprobs(self.teacher(world), self.schedule.temperature))


@dataclass(frozen=True)
class OPSD(HandbookMethod):
    """Distill the policy with a skill in its prompt into the policy without; rewards are ignored.

    L = E[D(q, p)] + β KL(π ‖ π_ref)        D: forward or reverse KL or JSD, over all tokens or the K likeliest
    sampled: L = E[ρ sg(log p − log q)(a)]   the gradient of the reverse KL, estimated from the written token
    released: L = E[sg(σ(5 d)) · d]          OPSD as in SDAR's released code: SDAR's gated term alone

    What differs from GRPO: the divergence replaces the surrogate, so the outcome has no effect.
    """

    name: ClassVar[str] = "opsd"
    ignores_rewards: ClassVar[bool] = True

    divergence: Literal["forward", "reverse", "jsd", "sampled", "released"] = "reverse"
    """divergence between teacher and student, over full distributions or (sampled) from the written token; released: SDAR's"""
    mixture: InnerShare = 0.5
    """α of the Jensen-Shannon divergence"""
    likeliest: Count = 0
    """compare the K likeliest tokens only; 0 is all of them"""
    support: Support = "student"
    """whose K likeliest tokens are compared: student or teacher"""
    distillation_weight: NotNegative = 1.0
    """weight of the divergence"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        if self.divergence == "sampled" or self.divergence == "released":
            weight = self.distillation_weight
            term = SampledReverseKL(weight) if self.divergence == "sampled" else GatedLikelihood(weight)
            return self.add_teacher_logprobs(world), replaces("losses", "surrogate", term)
        loss = Divergence(self.divergence, self.distillation_weight, self.mixture, self.likeliest, self.support)
        return adds("columns", "teacher", TeacherPrompts(self.teacher(world))), replaces("losses", "surrogate", loss)


@dataclass(frozen=True)
class GRPOwithOPSD(OPSD):
    """GRPO plus distillation from the policy with a skill in its prompt.

    released: L = L_GRPO + w E[½ (log q − log p)(a)]   gradient through p only: every written token becomes likelier
    else:     L = L_GRPO + w E[D(q, p)]                D as in OPSD

    What differs from GRPO: the second term. `released` is the baseline of SDAR's code.
    """

    name: ClassVar[str] = "grpo_opsd"
    ignores_rewards: ClassVar[bool] = False

    divergence: Literal["released", "forward", "reverse", "jsd"] = "released"
    """released: likelihood of the written tokens; otherwise a divergence between full distributions"""
    distillation_weight: NotNegative = 0.01
    """w: weight of the distillation term"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        if self.divergence == "released":
            loss = GatedLikelihood(self.distillation_weight, beta=0.0)
            return self.add_teacher_logprobs(world), adds("losses", "distillation", loss)
        column, surrogate = super().changes(world, resources)
        return column, adds("losses", "distillation", *surrogate.terms)


@dataclass(frozen=True)
class SkillSD(HandbookMethod):
    """GRPO plus a KL penalty to the policy with a skill in its prompt (k3 estimator).

    L = L_GRPO + w E[ρ (exp(−e) − 1 + e)],   e = log π_θ(a | h) − log π_old(a | H(h, s))

    What differs from GRPO: the second term.
    """

    name: ClassVar[str] = "skill_sd"

    distillation_weight: NotNegative = 0.001
    """w: weight of the distillation term"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return self.add_teacher_logprobs(world), adds("losses", "distillation", SkillK3(self.distillation_weight))


@dataclass(frozen=True)
class RLSD(HandbookMethod):
    """GRPO with credit scaled per token by the policy with a skill in its prompt.

    A_token = A_ep · ((1 − l) + l · clip(exp(sign(A_ep) · Δ), 1 − ε, 1 + ε)),   Δ = log π(a | H(h, s)) − log π(a | h)

    What differs from GRPO: the outcome sets the sign of the credit, the teacher its size. l falls linearly to 0.
    """

    name: ClassVar[str] = "rlsd"

    modulation: Share = 0.5
    """initial l: share of the credit that the teacher scales"""
    modulation_bound: Share = 0.2
    """ε: largest change of the scale"""
    modulation_iterations: AtLeastOne = 100
    """iterations after which l is 0"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        episode = EpisodeRelative(None if self.std == "none" else self.std, self.over)
        scale = self.modulation, self.modulation_bound, self.modulation_iterations
        credit = ModulatedCredit(episode, self.teacher(world), *scale)
        return (replaces("credits", "episode credit", credit),)


@dataclass(frozen=True)
class SDAR(HandbookMethod):
    """GRPO plus a gated likelihood term of the policy with a skill in its prompt.

    L = L_GRPO + w E[sg(σ(β d)) · d],   d = log π_old(a | H(h, s)) − log π_θ(a | h)

    What differs from GRPO: the second term. As released, its gradient flows through π_θ only: it makes written tokens
    likelier, most where the teacher prefers them, and none less likely.
    """

    name: ClassVar[str] = "sdar"

    distillation_weight: NotNegative = 0.01
    """w: weight of the distillation term"""
    gate: NotNegative = 5.0
    """β: sharpness of the gate"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        loss = GatedLikelihood(self.distillation_weight, self.gate)
        return self.add_teacher_logprobs(world), adds("losses", "distillation", loss)


@dataclass(frozen=True)
class SkillGRPO(HandbookMethod):
    """GRPO with a skill in the prompt, evaluated with and without it.

    What differs from GRPO: the prompt contains the handbook's page for the task's family. Evaluations run with and without it:
    behavior learned with a skill in the prompt may be lost without it (OPID, §4.2).
    """

    name: ClassVar[str] = "skill_grpo"

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return (replaces("conditions", "episode conditions", HandbookConditions(self.teacher(world))),)


@dataclass(frozen=True)
class SkillPrompt(SkillGRPO):
    """The untrained model, evaluated with and without a skill in its prompt."""

    name: ClassVar[str] = "skill_prompt"

    schedule: Schedule = field(default_factory=lambda: Schedule(iterations=0))
