"""GRPO+OPSD: the outcome and the self-teacher together, as SDAR's release has it (it is a baseline there), or as a divergence.

    released:    L = L_GRPO + w E[½ (log q(a) − log p(a))]       gradient through p alone: every written token becomes likelier
    otherwise:   L = L_GRPO + w E[D(q, p)]                       D as in OPSD

What differs from GRPO: the second term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from tacit.companions.hindsight.handbook import handbook_of
from tacit.core.bounds import Count, InnerShare, NotNegative
from tacit.core.composition import Part, adds
from tacit.core.tools import Tools
from tacit.core.world import Environment
from tacit.losses.distillation import Divergence, GatedLikelihood, Support, TaughtPrompts, TeacherLogprobs
from tacit.methods.grpo import GRPO


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

    def changes(self, world: Environment, tools: Tools) -> Sequence[Part]:
        teacher = handbook_of(world, self.handbook)
        if self.divergence == "released":
            column = TeacherLogprobs(teacher, self.schedule.temperature)
            loss = GatedLikelihood(self.distillation_weight, beta=0.0)
            return adds("columns", "teacher", column), adds("losses", "distillation", loss)
        apart = Divergence(self.divergence, self.distillation_weight, self.mixture, self.likeliest, self.support)
        return adds("columns", "teacher", TaughtPrompts(teacher)), adds("losses", "distillation", apart)
