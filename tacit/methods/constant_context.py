"""Constant context (Xie et al., 2026): a prompt of bounded size, with a state block instead of the history.

    xₜ  = Format(g, oₜ, (oₜ₋₁, aₜ₋₁), bₜ),   |xₜ| ≤ B        prompt: task, observation, last turn, block      (2, 3)
    rₜ  = r_env + r_prog − r_err                              measured by the tracker that writes bₜ             (7)
    Aₜ  = (Gₜ − mean G) / (std G + ε),   Gₜ = Σ γ^{u−t} rᵤ    over all steps of the K episodes of a task        (8)
    L   = E[−Aₜ log π(aₜ | xₜ) + β (log π(aₜ | xₜ) − log π_SFT(aₜ | xₜ))]                                       (9)

What differs from GRPO: the context, the rewards of Table 6, step returns as credit, and a plain policy gradient. This is the
paper's second stage. The first stage imitates an expert in the same context; its result π_SFT is the reference.

The paper samples with `--top-p 0.95`. The default is 1, because the sampler's log-probabilities are those of the full
distribution and match the sampled tokens only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tacit.core.bounds import NotNegative, Positive, Share
from tacit.core.errors import TacitError
from tacit.core.hindsight import ENV, ERROR, PROGRESS
from tacit.core.method import Context, Part, Resources, RewardTerm, Schedule, adds, replaces
from tacit.core.protocols import LossTerm
from tacit.core.world import Environment
from tacit.credit.episode import StepReturns
from tacit.losses.surrogates import PolicyGradient, ReferenceKL, SampledPenalty
from tacit.methods.grpo import GRPO
from tacit.prompts.history import PromptSettings
from tacit.rewards.outcome import ReferencePenalty, StepSignals, resolve_components

STEP_COST = "step_cost"
"""the reward component that does not come from the tracker"""


@dataclass(frozen=True)
class ConstantContext(GRPO):
    """A prompt of bounded size: current observation, last turn, and a tracker's state block."""

    name: ClassVar[str] = "constant_context"
    leads: ClassVar[bool] = True

    success_reward: Positive = 3.0
    """reward of a success"""
    progress_weight: float = 1.0
    """weight of the tracker's progress rewards; 0 turns them off"""
    error_weight: float = 1.0
    """weight of the tracker's error penalties; 0 turns them off"""
    step_cost: float = 0.01
    """cost of each step"""
    without: tuple[str, ...] = ()
    """reward components to leave out by name: rules of the world's tracker (subgoal,repeated), or progress, error, step_cost;
    env is the environment's own reward for steps, in worlds that have one"""
    invalid_penalty: NotNegative = 0.0
    """penalty on a step whose completion does not parse, in addition to the tracker's own"""
    gamma: Share = 0.98
    """discount per turn"""
    kl: NotNegative = 0.02
    """β of the penalty to the reference policy; 0 turns it off"""
    penalty: Literal["sampled", "k3", "reward"] = "sampled"
    """form of the penalty: sampled (as published; its gradient ignores the reference), k3 (as in GRPO), or in the reward"""
    prompt: PromptSettings = field(
        default_factory=lambda: PromptSettings(history=1, state_block=True, style="bare", admissible=False)
    )
    schedule: Schedule = field(
        default_factory=lambda: Schedule(groups=1, group_size=4, iterations=200, lr=5e-6, temperature=0.8)
    )

    def context(self, world: Environment) -> Context:
        """`state_block = false` only removes the block; the tracker's signals are rewarded either way."""
        return self.prompt.build_constant_context(world, self.prompt.state_block)

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        if self.schedule.epochs > 1:
            raise TacitError(
                f"epochs = {self.schedule.epochs}: the policy gradient of {self.name} has no importance ratio, so a batch can "
                f"be used only once. Set epochs to 1, or choose a method with a ratio, such as grpo."
            )
        std = None if self.std == "none" else self.std
        return (
            adds("rewards", "signals", self.signals(world)),
            replaces("credits", "episode credit", StepReturns(self.gamma, std)),
            replaces("losses", "surrogate", PolicyGradient()),
            *self.reference_parts(),
        )

    def reference_parts(self) -> Sequence[Part]:
        """The second term of Eq. 9, in the chosen form."""
        if not self.kl:
            return ()
        if self.penalty == "reward":
            inside = ReferencePenalty(self.kl, self.schedule.temperature)
            return (
                adds("rewards", "reference penalty", inside),
                adds("companions", "reference penalty", inside),
                replaces("losses", "KL"),
                replaces("columns", "reference"),
            )
        penalty: LossTerm = SampledPenalty(self.kl) if self.penalty == "sampled" else ReferenceKL(self.kl, over="actions")
        return (replaces("losses", "KL", penalty),)

    def signals(self, world: Environment) -> RewardTerm:
        """r_prog − r_err of Eq. 7 minus the step cost, plus r_env in worlds with step rewards."""
        weights = [(PROGRESS, self.progress_weight), (ERROR, -self.error_weight)]
        named = world.tracker_of(self.prompt.block).components
        if any(name.startswith(f"{ENV}.") for name in named):
            weights.append((ENV, 1.0))
        without = resolve_components(self.without, world.name, (*named, STEP_COST))
        cost = 0.0 if STEP_COST in without else self.step_cost
        return StepSignals(tuple(weights), cost, tuple(name for name in without if name != STEP_COST))
