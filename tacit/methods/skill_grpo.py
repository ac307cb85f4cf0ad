"""Skill-GRPO: GRPO whose agent reads the handbook's page for its kind of task while it practises.

What differs from GRPO: the page in the prompt. Evaluations are made with it and without: what was learned with a skill at hand
may not be there when it is taken away (OPID, §4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tacit.companions.hindsight.handbook import Told, handbook_of
from tacit.core.composition import Part, replaces
from tacit.core.tools import Tools
from tacit.core.world import Environment
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class SkillGRPO(GRPO):
    """GRPO with a skill in the prompt, measured with and without it."""

    name: ClassVar[str] = "skill_grpo"

    handbook: str = ""
    """file of skills by family (TOML); empty: the world's own"""

    def changes(self, world: Environment, tools: Tools) -> Sequence[Part]:
        return (replaces("conditions", "how it is told", Told(handbook_of(world, self.handbook))),)
