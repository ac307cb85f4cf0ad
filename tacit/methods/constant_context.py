"""Constant context (Xie et al., 2026): procedure in the weights, state in a small block.

    xₜ  = Format(g, oₜ, (oₜ₋₁, aₜ₋₁), bₜ),   |xₜ| ≤ B        what the agent reads                             (2, 3)
    rₜ  = r_env + r_prog − r_err                              the tracker that writes bₜ also judges the step   (7)
    Aₜ  = (Gₜ − mean G) / (std G + ε),   Gₜ = Σ γ^{u−t} rᵤ    over all steps of the K episodes of a task        (8)
    L   = E[−Aₜ log π(aₜ | xₜ) + β (log π(aₜ | xₜ) − log π_SFT(aₜ | xₜ))]                                       (9)

What differs from GRPO: the context, the rewards of Table 6, step returns as credit, and a plain policy gradient. This is the
second stage; the first is imitation of an expert in the same context, and the reference is the policy it leaves behind.

The paper's rollouts keep a nucleus of 0.95 (`--top-p 0.95`). The default keeps all: the sampler's log-probabilities are those
of the whole distribution, so with 1 they are those of what was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tacit.companions.reference import ReferencePenalty
from tacit.core.bounds import NotNegative, Positive, Share
from tacit.core.composition import Part, adds, replaces
from tacit.core.errors import TacitError
from tacit.core.method import Context, RewardTerm, Schedule
from tacit.core.protocols import LossTerm
from tacit.core.resources import Resources
from tacit.core.world import Environment
from tacit.credit.returns import StepReturns
from tacit.losses.regularizers import ReferenceKL
from tacit.losses.surrogates import PolicyGradient, SampledPenalty
from tacit.methods.grpo import GRPO
from tacit.prompts.settings import PromptSettings
from tacit.rewards.outcome import StepSignals, resolve_components

STEP_COST = "step_cost"
"""the one component of the reward that is no rule of a tracker"""


@dataclass(frozen=True)
class ConstantContext(GRPO):
    """A prompt that never grows: the present observation, the turn before, and a tracker's state block."""

    name: ClassVar[str] = "constant_context"
    leads: ClassVar[bool] = True

    success_reward: Positive = 3.0
    """what success is worth"""
    progress_weight: float = 1.0
    """weight of the tracker's progress rewards; 0 leaves them out"""
    error_weight: float = 1.0
    """weight of the tracker's error penalties; 0 leaves them out"""
    step_cost: float = 0.01
    """what each step costs"""
    without: tuple[str, ...] = ()
    """reward components to leave out by name: rules of the world's tracker (subgoal,repeated), or progress, error, step_cost"""
    invalid_penalty: NotNegative = 0.0
    """taken off a step whose completion does not parse, beside the tracker's own penalty for invalid actions"""
    gamma: Share = 0.98
    """discount per turn"""
    kl: NotNegative = 0.02
    """β of the penalty to the reference policy; 0 leaves it out"""
    penalty: Literal["sampled", "k3", "reward"] = "sampled"
    """sampled is the published one, which does not pull towards the reference; k3 (GRPO's) does, and so does reward (inside
    it)"""
    prompt: PromptSettings = field(
        default_factory=lambda: PromptSettings(history=1, state_block=True, style="bare", admissible=False)
    )
    schedule: Schedule = field(
        default_factory=lambda: Schedule(groups=1, group_size=4, iterations=200, lr=5e-6, temperature=0.8)
    )

    def context(self, world: Environment) -> Context:
        """Without the state block the prompt is the same; the tracker's signals are rewarded either way."""
        return self.prompt.build_constant_context(world, self.prompt.state_block)

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        if self.schedule.epochs > 1:
            raise TacitError(
                f"epochs = {self.schedule.epochs}: the policy gradient of {self.name} has no importance ratio, so a batch can "
                f"be used once only. Set epochs to 1, or choose a method with a ratio, such as grpo."
            )
        std = None if self.std == "none" else self.std
        return (
            adds("rewards", "signals", self.signals(world)),
            replaces("credits", "episode credit", StepReturns(self.gamma, std)),
            replaces("losses", "surrogate", PolicyGradient()),
            *self.reference_parts(),
        )

    def reference_parts(self) -> Sequence[Part]:
        """The second term of Eq. 9, or what may stand in its place."""
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
        """r_prog − r_err of Eq. 7, and what each step costs."""
        weights = (("progress", self.progress_weight), ("error", -self.error_weight))
        without = resolve_components(self.without, world.name, (*world.tracker_of(self.prompt.block).components, STEP_COST))
        cost = 0.0 if STEP_COST in without else self.step_cost
        return StepSignals(weights, cost, tuple(name for name in without if name != STEP_COST))
