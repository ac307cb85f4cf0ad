"""SDAR: self-distilled agentic reinforcement learning (Lu et al., 2026).

    L = L_GRPO + w E[sg(σ(β d)) · d],   d = log π_old(a | H(h, s)) − log π_θ(a | h)       gradient through π_θ alone

What differs from GRPO: the second term. As it was released, it makes what was written likelier, through a gate that opens where
the policy with a skill in its prompt likes it better; it makes nothing less likely (losses/distillation.py).
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
from tacit.losses.distillation import GatedLikelihood, TeacherLogprobs
from tacit.methods.grpo import GRPO


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

    def changes(self, world: Environment, tools: Tools) -> Sequence[Part]:
        column = TeacherLogprobs(handbook_of(world, self.handbook), self.schedule.temperature)
        loss = GatedLikelihood(self.distillation_weight, self.gate)
        return adds("columns", "teacher", column), adds("losses", "distillation", loss)
