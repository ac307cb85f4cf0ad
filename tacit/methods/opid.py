"""OPID: on-policy skill distillation (Yang et al., 2026).

    A(τ) = (s_ep, {s_step,t}_{t ∈ C})                                  an analyzer looks back on every finished episode
    s_t  = s_step,t  if t ∈ C  else  s_ep                              critical-first routing
    h̃_t  = H(h_t, s_t)                                                 the prompt that was read, with the skill in it
    A_skill = log π_old(y_t | h̃_t, y<) − log π_old(y_t | h_t, y<)       per token: the policy's own reaction to the skill
    A    = A_ep + λ · A_skill                                          A_ep as in GRPO

What differs from GRPO: the second term. The agent itself never reads a skill, neither in training nor afterwards; where all
episodes of a task end alike, A_ep is zero and the skill still says something (Corollary 3). The view of it as a relative KL is
in docs/methods/opid.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tacit.companions.hindsight.analyzers import Analyzer, ModelAnalyzer, RuleAnalyzer
from tacit.companions.hindsight.companion import Hindsight, RoutedSkills, Routing
from tacit.core.bounds import AtLeastOne, NotNegative, Positive
from tacit.core.composition import Part, adds
from tacit.core.resources import Prices, Resources
from tacit.core.world import Environment
from tacit.credit.skill_shift import SkillShift
from tacit.methods.grpo import GRPO
from tacit.prompts.settings import PromptSettings


@dataclass(frozen=True)
class OPID(GRPO):
    """GRPO with what hindsight's skills would have changed, token by token."""

    name: ClassVar[str] = "opid"

    skill_weight: NotNegative = 0.001
    """λ of the skill shift; 0 is GRPO"""
    analyzer: Literal["rule", "policy", "model"] = "rule"
    """who looks back: the world's own rule, the trained policy, or the model of [policies.analyzer], an endpoint perhaps"""
    routing: Routing = "critical_first"
    """which skill a step is told: critical_first, additive (both, added up), episode or step alone"""
    critical_steps: AtLeastOne | None = None
    """the most steps of an episode that get a skill of their own; unless said 5, in search 2 (of a rule at most 5)"""
    normalise_shift: bool = False
    """bring the shifts of a batch to mean 0 and deviation 1"""
    clip_shift: Positive | None = None
    """cut shifts to plus or minus this"""
    analyzer_temperature: NotNegative = 0.4
    """at which a model answers"""
    analyzer_tokens: AtLeastOne = 4096
    """its longest answer"""
    analyzer_price_prompt: NotNegative = 0.0
    """of a million tokens that it reads, for the cost in the metrics"""
    analyzer_price_completion: NotNegative = 0.0
    """of a million tokens that it writes"""
    prompt: PromptSettings = field(default_factory=lambda: PromptSettings(history=5))

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        if not self.skill_weight:
            return ()
        prices = Prices(self.analyzer_price_prompt, self.analyzer_price_completion)
        hindsight = Hindsight(self.build_analyzer(world, resources), prices)
        teacher = RoutedSkills(hindsight, self.routing)
        shift = SkillShift(teacher, self.skill_weight, self.normalise_shift, self.clip_shift)
        return adds("companions", "hindsight", hindsight), adds("credits", "skill shift", shift)

    def build_analyzer(self, world: Environment, resources: Resources) -> Analyzer:
        most = self.critical_steps or world.critical_steps
        if self.analyzer == "rule":
            return RuleAnalyzer.of(world, most)
        asked = resources.helper("analyzer") if self.analyzer == "model" else None
        kept = resources.directory("hindsight")
        return ModelAnalyzer(asked, most, self.analyzer_temperature, self.analyzer_tokens, kept)
