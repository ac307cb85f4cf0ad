"""GRPO: group-relative policy optimization (Shao et al., 2024), one sample per environment step.

    A = (R − mean R) / (std R + δ)                                  over the trajectories of one task
    L = −E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] + β KL(π ‖ π_ref)     over the tokens of the whole batch

`std = "none"` is Dr. GRPO. All other methods are defined by what they change here (`changes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from tacit.core.bounds import Basic, Bound, NotNegative, Positive, check_bounds
from tacit.core.method import NO_RESOURCES, Base, Context, Method, Part, Resources, Schedule, adds, compose
from tacit.core.world import Environment
from tacit.credit.episode import EpisodeRelative
from tacit.losses.surrogates import ClippedSurrogate, EntropyBonus, ReferenceKL, ReferenceLogprobs
from tacit.prompts.history import PromptSettings
from tacit.rewards.outcome import InvalidPenalty, RewardSource, build_outcome

ClipLow = Annotated[float, Bound(lambda v: 0 < v <= 1, "must be above 0 and at most 1: the ratio is clipped to 1 - clip_low")]
ClipHigh = Annotated[float, Bound(lambda v: v > 0, "must be above 0: the ratio is clipped to 1 + clip_high")]


@dataclass(frozen=True)
class GRPO:
    """Group-relative policy optimization: an episode's advantage is its reward relative to its group."""

    name: ClassVar[str] = "grpo"
    leads: ClassVar[bool] = False
    """when combined with other methods, its defaults of shared settings win (methods/combine.py)"""
    ignores_rewards: ClassVar[bool] = False
    """none of its losses reads credit, so it cannot be combined with methods that change rewards or credit"""

    outcome: RewardSource = "success"
    """source of reward: success, the world's final score, or its rewards of single steps"""
    success_reward: Positive = 10.0
    """reward of a success or of a score of 1; the world's step rewards are multiplied by it"""
    invalid_penalty: NotNegative = 0.1
    """penalty on a step whose completion does not parse into an action"""
    std: Literal["population", "sample", "none"] = "population"
    """divide advantages by this standard deviation: population, sample, or none (Dr. GRPO)"""
    over: Literal["trajectories", "steps"] = "trajectories"
    """group mean and deviation over trajectories, or over steps (long episodes weigh more)"""
    clip_low: ClipLow = 0.2
    """ε_low: the importance ratio is clipped below at 1 − ε_low"""
    clip_high: ClipHigh = 0.2
    """ε_high: the importance ratio is clipped above at 1 + ε_high"""
    kl: Basic[NotNegative] = 0.01
    """β of the KL to the reference policy; 0 turns it off"""
    entropy: NotNegative = 0.0
    """weight of the entropy bonus"""
    prompt: PromptSettings = field(default_factory=PromptSettings)
    schedule: Schedule = field(default_factory=Schedule)

    def build(self, world: Environment, resources: Resources = NO_RESOURCES) -> Method:
        check_bounds(self)
        return compose(
            self.name, self.context(world), self.schedule, self.parts(world), {self.name: self.changes(world, resources)}
        )

    def parts(self, world: Environment) -> Sequence[Part]:
        """The parts of GRPO."""
        return (
            adds("rewards", "outcome", build_outcome(world, self.outcome, self.success_reward)),
            adds("rewards", "invalid penalty", *([InvalidPenalty(self.invalid_penalty)] if self.invalid_penalty else [])),
            adds("credits", "episode credit", EpisodeRelative(None if self.std == "none" else self.std, self.over)),
            adds("columns", "reference", *([ReferenceLogprobs(self.schedule.temperature)] if self.kl else [])),
            adds("losses", "surrogate", ClippedSurrogate(self.clip_low, self.clip_high)),
            adds("losses", "KL", *([ReferenceKL(self.kl)] if self.kl else [])),
            adds("losses", "entropy", *([EntropyBonus(self.entropy)] if self.entropy else [])),
        )

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        """What this method adds to or replaces in the parts of GRPO (`parts`)."""
        return ()

    def fit_to_model(self, base: Base, explicit: frozenset[str]) -> tuple[Self, tuple[str, ...]]:
        """The settings for this model, and notes on what changed. `explicit`: names of the settings the user gave."""
        prompt, notes = self.prompt.fit_to_model(base, explicit)
        return replace(self, prompt=prompt), notes

    def with_prompt(self, **changes: Any) -> Self:
        """A copy with other prompt settings: `GRPO().with_prompt(history=0)`."""
        return replace(self, prompt=replace(self.prompt, **changes))

    def entry_warnings(self, policies: frozenset[str]) -> tuple[str, ...]:
        """Warnings for runs that imitate writing entries (`sft.entries`). `policies`: names of the other policies."""
        return ()

    def context(self, world: Environment) -> Context:
        return self.prompt.build_context(world)
