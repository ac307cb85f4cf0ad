"""Skills of the handbook in the prompt: Skill-GRPO trains with them, Skill-Prompt only evaluates.

What differs from GRPO: the page for the task's family in the prompt. Evaluations run with it and without, because what was
learned with a skill in the prompt may be lost without it (OPID, §4.2).
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
class SkillGRPO(GRPO):
    """GRPO with a skill in the prompt, evaluated with and without it."""

    name: ClassVar[str] = "skill_grpo"

    handbook: str = ""
    """skills by family: a TOML file, or a directory as SDAR released; empty: the world's own"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return (replaces("conditions", "episode conditions", HandbookConditions(load_handbook(world, self.handbook))),)


@dataclass(frozen=True)
class SkillPrompt(SkillGRPO):
    """The untrained model, evaluated with and without a skill in its prompt."""

    name: ClassVar[str] = "skill_prompt"

    schedule: Schedule = field(default_factory=lambda: Schedule(iterations=0))
