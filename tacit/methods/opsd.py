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

from tacit.companions.hindsight.handbook import handbook_of
from tacit.core.bounds import Count, InnerShare, NotNegative
from tacit.core.composition import Part, adds, replaces
from tacit.core.tools import Tools
from tacit.core.world import Environment
from tacit.losses.distillation import Divergence, SampledReverseKL, Support, TaughtPrompts, TeacherLogprobs
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class OPSD(GRPO):
    """The policy learns from itself with a skill in its prompt; outcomes are not looked at."""

    name: ClassVar[str] = "opsd"
    blind: ClassVar[bool] = True

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

    def changes(self, world: Environment, tools: Tools) -> Sequence[Part]:
        teacher = handbook_of(world, self.handbook)
        if self.divergence == "sampled":
            column = TeacherLogprobs(teacher, self.schedule.temperature)
            return adds("columns", "teacher", column), replaces(
                "losses", "surrogate", SampledReverseKL(self.distillation_weight)
            )
        loss = Divergence(self.divergence, self.distillation_weight, self.mixture, self.likeliest, self.support)
        return adds("columns", "teacher", TaughtPrompts(teacher)), replaces("losses", "surrogate", loss)
