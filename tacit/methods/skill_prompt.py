"""Skill-Prompt: the agent reads the handbook's page for its kind of task, and nothing is learned.

What differs from GRPO: no iterations. The evaluation without the page is the model as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tacit.companions.hindsight.companion import HandbookConditions, load_handbook
from tacit.core.composition import Part, replaces
from tacit.core.method import Schedule
from tacit.core.resources import Resources
from tacit.core.world import Environment
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class SkillPrompt(GRPO):
    """The model as it is, measured with and without a skill in its prompt."""

    name: ClassVar[str] = "skill_prompt"

    handbook: str = ""
    """file of skills by family (TOML); empty: the world's own"""
    schedule: Schedule = field(default_factory=lambda: Schedule(iterations=0))

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return (replaces("conditions", "how it is told", HandbookConditions(load_handbook(world, self.handbook))),)


# Skill-GRPO: GRPO whose agent reads the handbook's page for its kind of task while it practises.
#
# What differs from GRPO: the page in the prompt. Evaluations are made with it and without: what was learned with a skill at
# hand may not be there when it is taken away (OPID, §4.2).


@dataclass(frozen=True)
class SkillGRPO(GRPO):
    """GRPO with a skill in the prompt, measured with and without it."""

    name: ClassVar[str] = "skill_grpo"

    handbook: str = ""
    """file of skills by family (TOML); empty: the world's own"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return (replaces("conditions", "how it is told", HandbookConditions(load_handbook(world, self.handbook))),)
