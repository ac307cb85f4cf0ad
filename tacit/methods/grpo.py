"""GRPO: group-relative policy optimisation (Shao et al., 2024), one sample per environment step.

    A = (R − mean R) / (std R + δ)                                  over the trajectories of one task
    L = −E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] + β KL(π ‖ π_ref)     over the tokens of the whole batch

`std = None` is Dr. GRPO. Every other method says what it changes here, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tacit.contexts.history import History
from tacit.contexts.state_block import StateBlock
from tacit.core.errors import TacitError
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
    state_block: bool = False
    """read a tracker's state block and at most one past turn (`history` 1 or 0) instead of a longer history"""
    bound: int = 4000
    """most characters of a prompt with a state block; a longer one stops the run and says why"""
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
        if self.state_block:
            return self.constant_context(world)
        turns = None if self.history < 0 else self.history
        return History(world.wording(self.wording), turns, self.admissible, self.style)

    def constant_context(self, world: Environment, block: bool = True) -> Context:
        """The present, at most one turn of the past, and (with `block`) what the world's tracker says of the rest."""
        if self.history not in (0, 1):
            raise TacitError(
                f"history = {self.history}: a constant context shows the turn before (1) or none (0). For more, leave "
                f"the state block out: `--method grpo --history {self.history}`."
            )
        if world.tracker is None:
            raise TacitError(
                f"a state block needs a tracker, and world {world.name!r} has none. Give its Environment `tracker=…` (see "
                f"Tracker in tacit/core/world.py), or choose a method that needs none, such as grpo without --state-block."
            )
        one_step = self.history == 1
        return StateBlock(world.wording(self.wording), world.tracker, block, one_step, self.admissible, self.style, self.bound)

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
