"""OPSD: on-policy self-distillation (Zhao et al., 2026). The teacher is the policy itself with a skill in its prompt.

    p = π_θ(· | h)      q = sg π_θ(· | H(h, s))          at the contexts the policy came to by itself
    L = E[D(q, p)] + β KL(π ‖ π_ref)                     D: forward or reverse KL, JSD, over all tokens or the K likeliest
    sampled: L = E[ρ sg(log p − log q)(a)]               from the token that was written: the gradient of the reverse KL

What differs from GRPO: the surrogate is gone, and with it the outcome. `grpo_opsd` keeps both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from tacit.companions.hindsight.companion import load_handbook
from tacit.core.bounds import AtLeastOne, Count, InnerShare, NotNegative, Share
from tacit.core.composition import Part, adds, replaces
from tacit.core.resources import Resources
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
class OPSD(GRPO):
    """The policy learns from itself with a skill in its prompt; outcomes are not looked at."""

    name: ClassVar[str] = "opsd"
    ignores_rewards: ClassVar[bool] = True

    handbook: str = ""
    """file of skills by family (TOML); empty: the world's own"""
    divergence: Literal["forward", "reverse", "jsd", "sampled"] = "reverse"
    """between teacher and student: over whole distributions, or from the sampled token"""
    mixture: InnerShare = 0.5
    """α of the jsd"""
    likeliest: Count = 0
    """compare the K likeliest tokens only; 0 is all of them"""
    support: Support = "student"
    """whose K likeliest tokens: student or teacher"""
    distillation_weight: NotNegative = 1.0
    """of the divergence"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        teacher = load_handbook(world, self.handbook)
        if self.divergence == "sampled":
            column = TeacherLogprobs(teacher, self.schedule.temperature)
            return adds("columns", "teacher", column), replaces(
                "losses", "surrogate", SampledReverseKL(self.distillation_weight)
            )
        loss = Divergence(self.divergence, self.distillation_weight, self.mixture, self.likeliest, self.support)
        return adds("columns", "teacher", TeacherPrompts(teacher)), replaces("losses", "surrogate", loss)


# GRPO+OPSD: the outcome and the self-teacher together, as SDAR's release has it (it is a baseline there), or as a divergence.
#
#     released:    L = L_GRPO + w E[½ (log q(a) − log p(a))]       gradient through p alone: every written token becomes
# likelier
#     otherwise:   L = L_GRPO + w E[D(q, p)]                       D as in OPSD
#
# What differs from GRPO: the second term.


@dataclass(frozen=True)
class GRPOwithOPSD(GRPO):
    """GRPO, and a pull towards itself with a skill in the prompt."""

    name: ClassVar[str] = "grpo_opsd"

    handbook: str = ""
    """file of skills by family (TOML); empty: the world's own"""
    divergence: Literal["released", "forward", "reverse", "jsd"] = "released"
    """released: the likelihood of what was written; else between whole distributions"""
    mixture: InnerShare = 0.5
    """α of the jsd"""
    likeliest: Count = 0
    """compare the K likeliest tokens only; 0 is all of them"""
    support: Support = "student"
    """whose K likeliest tokens: student or teacher"""
    distillation_weight: NotNegative = 0.01
    """w"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        teacher = load_handbook(world, self.handbook)
        if self.divergence == "released":
            column = TeacherLogprobs(teacher, self.schedule.temperature)
            loss = GatedLikelihood(self.distillation_weight, beta=0.0)
            return adds("columns", "teacher", column), adds("losses", "distillation", loss)
        apart = Divergence(self.divergence, self.distillation_weight, self.mixture, self.likeliest, self.support)
        return adds("columns", "teacher", TeacherPrompts(teacher)), adds("losses", "distillation", apart)


# Skill-SD: skill-conditioned self-distillation (Wang et al., 2026).
#
#     L = L_GRPO + w E[ρ (exp(−e) − 1 + e)],   e = log π_θ(a | h) − log π_old(a | H(h, s))       k3 of the KL to the skilled
# self
#
# What differs from GRPO: the second term.


@dataclass(frozen=True)
class SkillSD(GRPO):
    """GRPO kept near itself with a skill in the prompt, by the k3 estimator."""

    name: ClassVar[str] = "skill_sd"

    handbook: str = ""
    """file of skills by family (TOML); empty: the world's own"""
    distillation_weight: NotNegative = 0.001
    """w"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        column = TeacherLogprobs(load_handbook(world, self.handbook), self.schedule.temperature)
        return adds("columns", "teacher", column), adds("losses", "distillation", SkillK3(self.distillation_weight))


# RLSD: self-distilled RL with verifiable rewards (Yang et al., 2026).
#
#     A_token = A_ep · ((1 − l) + l · clip(exp(sign(A_ep) · Δ), 1 − ε, 1 + ε)),   Δ = log π(a | H(h, s)) − log π(a | h)
#
# The outcome decides the direction, the self-teacher the size; l falls linearly to 0. What differs from GRPO: the episode's
# credit is modulated.


@dataclass(frozen=True)
class RLSD(GRPO):
    """GRPO whose credit is larger where the policy with a skill in its prompt agrees."""

    name: ClassVar[str] = "rlsd"

    handbook: str = ""
    """file of skills by family (TOML); empty: the world's own"""
    modulation: Share = 0.5
    """l at the start: how much of the credit the teacher may change"""
    modulation_bound: Share = 0.2
    """ε: by how much at the most"""
    modulation_iterations: AtLeastOne = 100
    """iterations after which l is 0"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        episode = EpisodeRelative(None if self.std == "none" else self.std, self.over)
        teacher = load_handbook(world, self.handbook)
        credit = ModulatedCredit(episode, teacher, self.modulation, self.modulation_bound, self.modulation_iterations)
        return (replaces("credits", "episode credit", credit),)


# SDAR: self-distilled agentic reinforcement learning (Lu et al., 2026).
#
#     L = L_GRPO + w E[sg(σ(β d)) · d],   d = log π_old(a | H(h, s)) − log π_θ(a | h)       gradient through π_θ alone
#
# What differs from GRPO: the second term. As it was released, it makes what was written likelier, through a gate that opens
# where the policy with a skill in its prompt likes it better; it makes nothing less likely (losses/distillation.py).


@dataclass(frozen=True)
class SDAR(GRPO):
    """GRPO with a gated pull towards what the policy would write with a skill in its prompt."""

    name: ClassVar[str] = "sdar"

    handbook: str = ""
    """file of skills by family (TOML); empty: the world's own"""
    distillation_weight: NotNegative = 0.01
    """w"""
    gate: NotNegative = 5.0
    """β: how sharply the gate opens"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        column = TeacherLogprobs(load_handbook(world, self.handbook), self.schedule.temperature)
        loss = GatedLikelihood(self.distillation_weight, self.gate)
        return adds("columns", "teacher", column), adds("losses", "distillation", loss)
