"""GRPO: group-relative policy optimisation (Shao et al., 2024), one sample per environment step.

    A = (R − mean R) / (std R + δ)                                  over the trajectories of one task
    L = −E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] + β KL(π ‖ π_ref)     over the tokens of the whole batch

`std = None` is Dr. GRPO. Every other method says what it changes here, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from tacit.core.bounds import AtLeastOne, Basic, Bound, NotNegative, Positive
from tacit.core.composition import Part, adds, compose
from tacit.core.errors import TacitError
from tacit.core.method import Context, Method, Schedule
from tacit.core.resources import NO_RESOURCES, Base, Resources
from tacit.core.types import ActionStyle
from tacit.core.world import FULL_BLOCK, Environment
from tacit.credit.episode import EpisodeRelative
from tacit.losses.regularizers import EntropyBonus, ReferenceKL, ReferenceLogprobs
from tacit.losses.surrogates import ClippedSurrogate
from tacit.prompts.history import History
from tacit.prompts.state_block import StateBlock
from tacit.rewards.outcome import InvalidPenalty, RewardSource, outcome_of

Turns = Annotated[int, Bound(lambda v: v >= -1, "must be a number of turns, or -1 for all of them")]
ClipLow = Annotated[float, Bound(lambda v: 0 < v <= 1, "must be above 0 and at most 1: the ratio is clipped to 1 - clip_low")]
ClipHigh = Annotated[float, Bound(lambda v: v > 0, "must be above 0: the ratio is clipped to 1 + clip_high")]


@dataclass(frozen=True)
class GRPO:
    """Group-relative policy optimisation: an episode is worth what it earned against its group."""

    name: ClassVar[str] = "grpo"
    leads: ClassVar[bool] = False
    """added to others (methods/combine.py), its own values of the settings they share hold"""
    blind: ClassVar[bool] = False
    """no loss of it reads credit, so what others do to rewards and credit would be lost"""

    history: Turns = 2
    """past turns in the prompt; -1 is all of them"""
    state_block: bool = False
    """read a tracker's state block and at most one past turn (`history` 1 or 0) instead of a longer history"""
    block: str = FULL_BLOCK
    """form of the state block: full, or another the world has (alfworld: text, no_places, paper; cooking: text, no_places)"""
    bound: AtLeastOne = 4000
    """most characters of a prompt with a state block; a longer one stops the run and says why"""
    wording: str = "full"
    """how the world is told: full, for language models, or terse, for tiny policies"""
    style: ActionStyle = "tags"
    """how actions are written: tags (<think>…</think><action>…</action>), bare, or tools (calls in the model's template)"""
    chat: bool = False
    """tell the episode as a conversation in the model's own template, past turns as messages; always so with tools"""
    thinking: bool = False
    """in a conversation: let a model whose template has a thought of its own think first; the thought is kept apart"""
    admissible: bool = True
    """list the admissible actions in the prompt, where the world has them"""
    outcome: RewardSource = "success"
    """what is rewarded: success, the world's graded score at the end, or what the world pays for single steps"""
    success_reward: Positive = 10.0
    """what success is worth, or a score of 1; what the world pays for a step is multiplied by it"""
    invalid_penalty: NotNegative = 0.1
    """taken off a step whose completion does not parse into an action"""
    std: Literal["population", "sample", "none"] = "population"
    """divide advantages by this standard deviation: population, sample, or none (Dr. GRPO)"""
    over: Literal["trajectories", "steps"] = "trajectories"
    """group statistics over trajectories, or over steps (long episodes weigh more)"""
    clip_low: ClipLow = 0.2
    """ε below 1"""
    clip_high: ClipHigh = 0.2
    """ε above 1"""
    kl: Basic[NotNegative] = 0.01
    """β of the KL to the reference policy; 0 leaves it out"""
    entropy: NotNegative = 0.0
    """weight of the entropy bonus"""
    schedule: Schedule = field(default_factory=Schedule)

    def build(self, world: Environment, resources: Resources = NO_RESOURCES) -> Method:
        return compose(
            self.name, self.context(world), self.schedule, self.parts(world), {self.name: self.changes(world, resources)}
        )

    def parts(self, world: Environment) -> Sequence[Part]:
        """What GRPO is made of."""
        return (
            adds("rewards", "outcome", outcome_of(world, self.outcome, self.success_reward)),
            adds("rewards", "invalid penalty", *([InvalidPenalty(self.invalid_penalty)] if self.invalid_penalty else [])),
            adds("credits", "episode credit", EpisodeRelative(None if self.std == "none" else self.std, self.over)),
            adds("columns", "reference", *([ReferenceLogprobs(self.schedule.temperature)] if self.kl else [])),
            adds("losses", "surrogate", ClippedSurrogate(self.clip_low, self.clip_high)),
            adds("losses", "KL", *([ReferenceKL(self.kl)] if self.kl else [])),
            adds("losses", "entropy", *([EntropyBonus(self.entropy)] if self.entropy else [])),
        )

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        """What a method adds to these parts or replaces of them."""
        return ()

    def fit_to_model(self, base: Base, said: frozenset[str]) -> tuple[Self, tuple[str, ...]]:
        """The settings for this model, and what was decided on the user's behalf.

        A policy of a million parameters cannot read what is written for language models: unless something else was said, it is
        told the world tersely, without lists of actions, and answers with the bare action.
        """
        wanted: dict[str, Any] = {"wording": "terse", "style": "bare", "admissible": False} if base.small else {}
        own = {name: value for name, value in wanted.items() if name not in said and getattr(self, name) != value}
        if not own:
            return self, ()
        told = ", ".join(f"{name} = {str(value).lower()}" for name, value in own.items())
        note = f"{base.model} is too small for the published prompts, so {told}; say otherwise to change it"
        return replace(self, **own), (note,)

    def entry_warnings(self, policies: frozenset[str]) -> tuple[str, ...]:
        """What is to be said where imitation shows how entries are written (`sft.entries`), and these policies are named."""
        return ()

    def context(self, world: Environment) -> Context:
        if self.state_block:
            return self.constant_context(world)
        turns = None if self.history < 0 else self.history
        return History(world.wording(self.wording), turns, self.admissible, self.style, *self._talking())

    def _talking(self) -> tuple[bool, bool]:
        """(whether the episode is told as a conversation, whether the model's own thought is asked for)"""
        chat = self.chat or self.style == "tools"
        if self.thinking and not chat:
            raise TacitError("thinking = true: a model's own thought is part of its chat template; add --chat.")
        return chat, self.thinking

    def constant_context(self, world: Environment, block: bool = True) -> Context:
        """The present, at most one turn of the past, and (with `block`) what the world's tracker says of the rest."""
        if self.history not in (0, 1):
            raise TacitError(
                f"history = {self.history}: a constant context shows the turn before (1) or none (0). For more, leave "
                f"the state block out: `--method grpo --history {self.history}`."
            )
        one_step, tracker = self.history == 1, world.tracker_of(self.block)
        told = (block, one_step, self.admissible, self.style, self.bound)
        return StateBlock(world.wording(self.wording), tracker, *told, *self._talking())
