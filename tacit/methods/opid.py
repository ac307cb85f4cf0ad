"""OPID: on-policy skill distillation (Yang et al., 2026).

    A(τ) = (s_ep, {s_step,t}_{t ∈ C})                                  an analyzer extracts skills from a finished episode
    s_t  = s_step,t  if t ∈ C  else  s_ep                              critical-first routing
    h̃_t  = H(h_t, s_t)                                                 the same prompt with the skill in it
    A_skill = log π_old(y_t | h̃_t, y<) − log π_old(y_t | h_t, y<)       per token
    A    = A_ep + λ · A_skill                                          A_ep as in GRPO

What differs from GRPO: the second term. The agent never reads a skill, in training or evaluation. Where all episodes of a
task end alike, A_ep is 0 but A_skill is not (Corollary 3). docs/methods/opid.md relates it to a relative KL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from tacit.companions.hindsight import Analyzer, Hindsight, ModelAnalyzer, Notes, RoutedSkills, Routing, RuleAnalyzer
from tacit.core.bounds import AtLeastOne, Count, NotNegative, Positive
from tacit.core.errors import TacitError
from tacit.core.method import Part, Resources, adds
from tacit.core.world import Environment
from tacit.credit.skill_shift import GradientShare, SkillShift, parse_weight
from tacit.losses.surrogates import PolicyGradient
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class OPID(GRPO):
    """GRPO plus the shift in token log-probabilities that hindsight skills cause."""

    name: ClassVar[str] = "opid"

    skill_weight: NotNegative | str = 0.001
    """λ of the skill shift; 0 is GRPO; auto:0.1 chooses λ so that its gradient norm is 0.1 times that of the other credit"""
    analyzer: Literal["rule", "policy", "model"] = "rule"
    """who extracts skills: the world's rule, the trained policy, or the model of [policies.analyzer]"""
    routing: Routing = "critical_first"
    """skill of a step: critical_first, additive (sum of both shifts), episode only or step only"""
    notes: Notes = "true"
    """what is injected: skills (true), or a control: no text (empty), another task's (placebo), the expert's action (oracle)"""
    critical_steps: AtLeastOne | None = None
    """most steps per episode with a skill of their own; default: 5, in search 2 (a rule gives at most 5)"""
    normalise_shift: bool = False
    """standardize the shifts of a batch to mean 0 and deviation 1"""
    clip_shift: Positive | None = None
    """clip shifts to plus or minus this"""
    gradient_every: Count = 10
    """iterations between measurements of the skill term's share of the gradient; 0 is never, auto measures it in each"""
    gradient_rows: Count = 256
    """random steps on which each gradient is measured if more than twice as many have credit; 0 is all"""
    analyzer_temperature: NotNegative = 0.4
    """sampling temperature of the analyzer"""
    analyzer_tokens: AtLeastOne = 4096
    """longest answer of the analyzer, in tokens"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        weight, share = parse_weight(self.skill_weight)
        if not weight:
            return ()
        if self.notes == "oracle" and not world.experts:
            raise TacitError(f"notes = oracle: world {world.name!r} has no expert to ask; choose true, empty or placebo.")
        if self.notes == "placebo" and self.schedule.groups < 2:
            raise TacitError("notes = placebo takes the skills of another task of the batch: set --groups to at least 2.")
        hindsight = Hindsight(self.build_analyzer(world, resources))
        # A tiny policy reads terse prompts; the notes it imitated had no instruction.
        instructed = self.prompt.wording != "terse"
        expert = world.expert() if self.notes == "oracle" else None
        teacher = RoutedSkills(hindsight, self.routing, self.notes, expert, instructed)
        temperature = self.schedule.temperature
        gradient = GradientShare(PolicyGradient(), temperature, self.gradient_every, share, self.gradient_rows)
        reuse_sampled = temperature == 1.0
        shift = SkillShift(teacher, weight, self.normalise_shift, self.clip_shift, gradient, reuse_sampled)
        return adds("companions", "hindsight", hindsight), adds("credits", "skill shift", shift)

    def build_analyzer(self, world: Environment, resources: Resources) -> Analyzer:
        max_steps = self.critical_steps or world.critical_steps
        if self.analyzer == "rule":
            return RuleAnalyzer.of(world, max_steps)
        model = resources.helper("analyzer") if self.analyzer == "model" else None
        cache = resources.directory("hindsight")
        return ModelAnalyzer(model, max_steps, self.analyzer_temperature, self.analyzer_tokens, cache)
