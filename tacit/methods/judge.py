"""A judge beside the world's own word: a model grades every episode by a rubric, and the grade is paid at its end.

    r_T ← r_T + w · grade / 10

The model is the policy `judge` of the run: at an endpoint, or held here; the run's own untrained model where none is named.

    [policies.judge]
    model = "gpt-4o-mini"
    engine = { name = "chat", url = "https://api.openai.com/v1" }

As it only adds, it goes with every other method: `--method reuserl+judge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tacit.companions.judge import EpisodeJudge
from tacit.core.bounds import AtLeastOne, NotNegative
from tacit.core.composition import Part, adds
from tacit.core.errors import TacitError
from tacit.core.resources import Prices, Resources
from tacit.core.world import Environment
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class Judge(GRPO):
    """GRPO with a judge: a model grades every episode by a rubric, and the grade is paid at its end."""

    name: ClassVar[str] = "judge"

    rubric: str = "The agent does what was asked, without needless steps."
    """what is judged: the text itself, or a file that holds it (.txt or .md)"""
    judge_weight: NotNegative = 1.0
    """what the best grade is worth, beside success_reward"""
    judge_tokens: AtLeastOne = 256
    """longest answer of the judge"""
    judge_cache: str = ""
    """directory for its answers, which runs may share; empty is one in the run's own"""
    judge_price_prompt: NotNegative = 0.0
    """of a million tokens that it reads, for the cost in the metrics"""
    judge_price_completion: NotNegative = 0.0
    """of a million tokens that it writes"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        place = Path(self.judge_cache).expanduser() if self.judge_cache else resources.directory("judge")
        prices = Prices(self.judge_price_prompt, self.judge_price_completion)
        ask = resources.helper("judge")
        judge = EpisodeJudge(self._rubric(), ask, place, self.judge_weight, self.judge_tokens, prices)
        return adds("rewards", "judge", judge), adds("companions", "judge", judge)

    def _rubric(self) -> str:
        if not self.rubric.strip():
            raise TacitError("rubric is empty, so there is nothing to judge by; say it (--rubric TEXT, or a .txt or .md file).")
        if not self.rubric.endswith((".txt", ".md")) or "\n" in self.rubric:
            return self.rubric
        try:
            return Path(self.rubric).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TacitError(f"cannot read the rubric {self.rubric}: {getattr(error, 'strerror', None) or error}.") from error
