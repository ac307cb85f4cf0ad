"""GRPO: group-relative policy optimisation (Shao et al., 2024), one sample per environment step.

    A = (R − mean R) / (std R + δ)                                  over the trajectories of one task
    L = −E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] + β KL(π ‖ π_ref)     over the tokens of the whole batch

`std = None` is Dr. GRPO. Every other method says what it changes here, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tacit.contexts.history import History
from tacit.core.method import Column, Companion, Context, CreditTerm, Method, RewardTerm, Schedule, Selection
from tacit.core.protocols import LossTerm
from tacit.core.types import ActionStyle
from tacit.core.world import Environment
from tacit.credit.episode import EpisodeRelative
from tacit.losses.clipped import ClippedSurrogate
from tacit.losses.entropy import EntropyBonus
from tacit.losses.kl import ReferenceKL, ReferenceLogprobs
from tacit.rewards.invalid import InvalidPenalty
from tacit.rewards.outcome import Outcome


@dataclass(frozen=True)
class GRPO:
    """Group-relative policy optimisation: an episode is worth what it earned against its group."""

    name: ClassVar[str] = "grpo"

    history: int = 2
    """past turns in the prompt; -1 is all of them"""
    wording: str = "full"
    """how the world is told: full, for language models, or terse, for tiny policies"""
    style: ActionStyle = "tags"
    """how actions are written: tags (<think>…</think><action>…</action>) or bare"""
    admissible: bool = True
    """list the admissible actions in the prompt, where the world has them"""
    success_reward: float = 10.0
    """what success is worth"""
    invalid_penalty: float = 0.1
    """taken off a step whose completion does not parse into an action"""
    std: Literal["population", "sample", "none"] = "population"
    """divide advantages by this standard deviation: population, sample, or none (Dr. GRPO)"""
    over: Literal["trajectories", "steps"] = "trajectories"
    """group statistics over trajectories, or over steps (long episodes weigh more)"""
    clip_low: float = 0.2
    """ε below 1"""
    clip_high: float = 0.2
    """ε above 1"""
    kl: float = 0.01
    """β of the KL to the reference policy; 0 leaves it out"""
    entropy: float = 0.0
    """weight of the entropy bonus"""
    schedule: Schedule = field(default_factory=Schedule)

    def build(self, world: Environment) -> Method:
        return Method(
            name=self.name,
            context=self.context(world),
            rewards=self.rewards(world),
            credits=self.credits(),
            columns=self.columns(),
            losses=self.losses(),
            companions=self.companions(world),
            selection=self.selection(),
            schedule=self.schedule,
        )

    def context(self, world: Environment) -> Context:
        turns = None if self.history < 0 else self.history
        return History(world.wording(self.wording), turns, self.admissible, self.style)

    def rewards(self, world: Environment) -> tuple[RewardTerm, ...]:
        return Outcome(self.success_reward), InvalidPenalty(self.invalid_penalty)

    def credits(self) -> tuple[CreditTerm, ...]:
        return (EpisodeRelative(None if self.std == "none" else self.std, self.over),)

    def columns(self) -> tuple[Column, ...]:
        return (ReferenceLogprobs(self.schedule.temperature),) if self.kl else ()

    def surrogate(self) -> LossTerm:
        return ClippedSurrogate(self.clip_low, self.clip_high)

    def bonus(self) -> tuple[LossTerm, ...]:
        return (EntropyBonus(self.entropy),) if self.entropy else ()

    def losses(self) -> tuple[LossTerm, ...]:
        kl = (ReferenceKL(self.kl),) if self.kl else ()
        return (self.surrogate(), *kl, *self.bonus())

    def companions(self, world: Environment) -> tuple[Companion, ...]:
        return ()

    def selection(self) -> Selection | None:
        return None
