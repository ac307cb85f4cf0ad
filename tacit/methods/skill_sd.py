"""Skill-SD: skill-conditioned self-distillation (Wang et al., 2026).

    L = L_GRPO + w E[ρ (exp(−e) − 1 + e)],   e = log π_θ(a | h) − log π_old(a | H(h, s))       k3 of the KL to the skilled self

What differs from GRPO: the second term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tacit.companions.hindsight.handbook import handbook_of
from tacit.core.bounds import NotNegative
from tacit.core.composition import Part, adds
from tacit.core.tools import Tools
from tacit.core.world import Environment
from tacit.losses.distillation import SkillK3, TeacherLogprobs
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class SkillSD(GRPO):
    """GRPO kept near itself with a skill in the prompt, by the k3 estimator."""

    name: ClassVar[str] = "skill_sd"

    handbook: str = ""
    """file of skills by family (TOML); empty: the world's own"""
    distillation_weight: NotNegative = 0.001
    """w"""

    def changes(self, world: Environment, tools: Tools) -> Sequence[Part]:
        column = TeacherLogprobs(handbook_of(world, self.handbook), self.schedule.temperature)
        return adds("columns", "teacher", column), adds("losses", "distillation", SkillK3(self.distillation_weight))
