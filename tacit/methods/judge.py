"""LLM judge: a model grades every episode by a rubric, and the grade is added to the last reward.

    r_T ← r_T + w · grade / 10

The model is the policy `judge` of the run, local or at an endpoint. Default: the run's own model, untrained.

    [policies.judge]
    model = "gpt-4o-mini"
    engine = { name = "chat", url = "https://api.openai.com/v1" }

What differs from GRPO: this reward. It combines with every other method: `--method reuserl+judge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tacit.companions.judge import EpisodeJudge
from tacit.core.bounds import AtLeastOne, NotNegative
from tacit.core.errors import TacitError
from tacit.core.method import Part, Resources, adds
from tacit.core.world import Environment
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class Judge(GRPO):
    """GRPO with an LLM judge: a model grades every episode by a rubric, and the grade is part of the reward."""

    name: ClassVar[str] = "judge"

    rubric: str = "The agent does what was asked, without needless steps."
    """grading instructions: text, or a .txt or .md file"""
    judge_weight: NotNegative = 1.0
    """w: reward for the highest grade"""
    judge_tokens: AtLeastOne = 256
    """longest answer of the judge, in tokens"""
    judge_cache: str = ""
    """cache directory of the judge's answers; runs may share it; empty: inside the run directory"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        cache = Path(self.judge_cache).expanduser() if self.judge_cache else resources.directory("judge")
        judge = EpisodeJudge(self.read_rubric(), resources.helper("judge"), cache, self.judge_weight, self.judge_tokens)
        return adds("rewards", "judge", judge), adds("companions", "judge", judge)

    def read_rubric(self) -> str:
        if not self.rubric.strip():
            raise TacitError("rubric is empty: give the text or a .txt or .md file (--rubric TEXT).")
        if not self.rubric.endswith((".txt", ".md")) or "\n" in self.rubric:
            return self.rubric
        try:
            return Path(self.rubric).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TacitError(f"cannot read the rubric {self.rubric}: {getattr(error, 'strerror', None) or error}.") from error
