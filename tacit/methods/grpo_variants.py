"""Variants of GRPO: RLOO, REINFORCE++, DAPO, GSPO, CISPO, PPO, and self-imitation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from tacit.companions.imitation import ImitationCompanion, select_above_mean
from tacit.core.bounds import AtLeastOne, NotNegative, Positive, Share
from tacit.core.method import Part, Resources, adds, replaces
from tacit.core.world import Environment
from tacit.credit.episode import BatchRelative, GeneralizedAdvantage, LeaveOneOut, Returns
from tacit.losses.surrogates import ClippedSurrogate, ClippedWeight, ValueLoss
from tacit.methods.grpo import GRPO, ClipHigh, ClipLow
from tacit.rollout.episodes import Mixed


@dataclass(frozen=True)
class RLOO(GRPO):
    """RLOO (Ahmadian et al., 2024): REINFORCE with a leave-one-out baseline.

    Aᵢ = Rᵢ − mean_{j≠i} Rⱼ

    What differs from GRPO: the baseline excludes the trajectory itself, and there is no division by a deviation.
    """

    name: ClassVar[str] = "rloo"

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return (replaces("credits", "episode credit", LeaveOneOut()),)


@dataclass(frozen=True)
class ReinforcePP(GRPO):
    """REINFORCE++ (Hu et al., 2025): advantages standardized over the whole batch, KL inside the reward.

    Aₜ = (Rₜ − mean) / (std + δ),   Rₜ = R − β Σ_{u≥t} (log π − log π_ref)ᵤ       mean and std over all tokens of the batch

    What differs from GRPO: the pool of the statistics, and the place of the KL. `baseline = group` is REINFORCE++-baseline.
    """

    name: ClassVar[str] = "reinforce_pp"

    baseline: Literal["none", "group"] = "none"
    """none, or group: subtract the group's mean outcome first"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        credit = BatchRelative(self.kl, self.baseline, self.schedule.temperature)
        return (
            replaces("credits", "episode credit", credit),
            replaces("columns", "reference"),  # the KL is in the credit
            replaces("losses", "KL"),
        )


@dataclass(frozen=True)
class DAPO(GRPO):
    """DAPO (Yu et al., 2025): clip-higher and dynamic sampling, without KL.

    clip-higher        ε_low = 0.2, ε_high = 0.28
    dynamic sampling   groups that all succeed or all fail carry no signal; other tasks are rolled out instead
    no KL              and the loss is a mean over tokens, as in GRPO here

    What differs from GRPO: these three. Overlong-reward shaping is left out: completions end at an action.
    """

    name: ClassVar[str] = "dapo"

    clip_high: ClipHigh = 0.28
    """ε_high: the importance ratio is clipped above at 1 + ε_high"""
    kl: NotNegative = 0.0
    """β of the KL to the reference policy; 0 turns it off"""
    rounds: AtLeastOne = 10
    """maximum rollout rounds in search of groups with mixed outcomes; then train on the groups found"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return (
            adds("selection", "selection", Mixed(self.rounds)),
            replaces("losses", "surrogate", ClippedSurrogate(self.clip_low, self.clip_high)),
        )


@dataclass(frozen=True)
class GSPO(GRPO):
    """GSPO (Zheng et al., 2025): one length-normalized importance ratio per completion.

    ρ = (π(y|x) / π_old(y|x))^(1/|y|),   clipped to [1 − 3e-4, 1 + 4e-4],   every completion weighs the same

    What differs from GRPO: the ratio, its clip range, and the mean over completions. A sequence is one step's completion.
    """

    name: ClassVar[str] = "gspo"
    leads: ClassVar[bool] = True

    clip_low: ClipLow = 3e-4
    """ε_low: the importance ratio is clipped below at 1 − ε_low"""
    clip_high: ClipHigh = 4e-4
    """ε_high: the importance ratio is clipped above at 1 + ε_high"""
    kl: NotNegative = 0.0
    """β of the KL to the reference policy; 0 turns it off"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        surrogate = ClippedSurrogate(self.clip_low, self.clip_high, ratio="sequence", over="rows")
        return (replaces("losses", "surrogate", surrogate),)


@dataclass(frozen=True)
class CISPO(GRPO):
    """CISPO (Chen et al., 2025): clipped importance weights; every token keeps its gradient.

    L = −E[sg(clip(ρ, 1 − ε_low, 1 + ε_high)) · A · log π]

    What differs from GRPO: the loss.
    """

    name: ClassVar[str] = "cispo"
    leads: ClassVar[bool] = True

    clip_low: ClipLow = 1.0
    """ε_low: the importance ratio is clipped below at 1 − ε_low; 1 is no lower bound, as published"""
    clip_high: ClipHigh = 0.2
    """ε_high: the importance ratio is clipped above at 1 + ε_high"""
    kl: NotNegative = 0.0
    """β of the KL to the reference policy; 0 turns it off"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return (replaces("losses", "surrogate", ClippedWeight(self.clip_low, self.clip_high)),)


@dataclass(frozen=True)
class PPO(GRPO):
    """Actor-critic with generalized advantage estimation over turns.

    δₜ = rₜ + γ V(sₜ₊₁) − V(sₜ),   Aₜ = δₜ + γλ Aₜ₊₁
    L  = clipped surrogate + c E[(V(sₜ) − Rₜ)²] + β KL

    PPO (Schulman et al., 2017) over turns, with a value head on the policy that estimates the return of each prompt.
    What differs from GRPO: a learned baseline instead of the group, credit per turn (GAE), and the value loss.
    """

    name: ClassVar[str] = "ppo"
    leads: ClassVar[bool] = True

    success_reward: Positive = 1.0
    """reward of a success; at 10, the squared error of the value head would dominate the shared gradient"""
    invalid_penalty: NotNegative = 0.01
    """penalty on a step whose completion does not parse into an action"""
    gamma: Share = 0.99
    """discount per turn"""
    lam: Share = 0.95
    """λ of the advantage estimate; 1 is return minus value"""
    value_coefficient: NotNegative = 0.5
    """weight of the value loss"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return (
            replaces("credits", "episode credit", GeneralizedAdvantage(self.gamma, self.lam)),
            adds("columns", "returns", Returns(self.gamma)),
            adds("losses", "value", ValueLoss(self.value_coefficient)),
        )


@dataclass(frozen=True)
class SelfImitation(GRPO):
    """GRPO plus imitation of episodes above the mean of their group.

    B = {τ : R(τ) > mean R of its group}
    L = −E[log π_θ(a | h)]      over the tokens of B, in a separate optimizer step after GRPO's

    After Oh et al. (2018), without replay and critic.
    What differs from GRPO: that step. It is the baseline for complementary's `--internalise`, which imitates guided successes.
    """

    name: ClassVar[str] = "self_imitation"

    imitation_lr: NotNegative | None = None
    """learning rate of the imitation step; default: the schedule's"""
    imitation_every: AtLeastOne = 1
    """iterations between imitation steps"""
    imitation_share: Share = 1.0
    """largest share of a group that is imitated; 0.5 matches complementary, where half of a group is guided"""
    imitation_quickest: bool = False
    """imitate only the episodes with the fewest turns"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        lr = self.schedule.lr if self.imitation_lr is None else self.imitation_lr
        chosen = partial(select_above_mean, share=self.imitation_share, quickest=self.imitation_quickest)
        return (adds("companions", "self-imitation", ImitationCompanion(lr, self.imitation_every, chosen)),)
