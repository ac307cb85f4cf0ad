"""RLOO: REINFORCE with a leave-one-out baseline (Ahmadian et al., 2024).

    Aᵢ = Rᵢ − mean_{j≠i} Rⱼ

What differs from GRPO: the baseline leaves the trajectory itself out, and nothing is divided by a standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from tacit.core.bounds import AtLeastOne, NotNegative
from tacit.core.composition import Part, adds, replaces
from tacit.core.resources import Resources
from tacit.core.world import Environment
from tacit.credit.episode import BatchRelative, LeaveOneOut
from tacit.losses.surrogates import ClippedSurrogate, ClippedWeight
from tacit.methods.grpo import GRPO, ClipHigh, ClipLow
from tacit.rollout.episodes import Mixed


@dataclass(frozen=True)
class RLOO(GRPO):
    """REINFORCE with the mean of the other episodes as baseline."""

    name: ClassVar[str] = "rloo"

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return (replaces("credits", "episode credit", LeaveOneOut()),)


# REINFORCE++ (Hu et al., 2025): no group baseline, one normalisation over the whole batch, KL inside the reward.
#
#     Aₜ = (Rₜ − mean) / (std + δ),   Rₜ = R − β Σ_{u≥t} (log π − log π_ref)ᵤ       mean and std over all tokens of the batch
#
# What differs from GRPO: the pool that is standardised over, and where the KL enters. `baseline = group` first subtracts the
# group's mean outcome (the paper's REINFORCE++-baseline).


@dataclass(frozen=True)
class ReinforcePP(GRPO):
    """REINFORCE with advantages standardised over the whole batch."""

    name: ClassVar[str] = "reinforce_pp"

    baseline: Literal["none", "group"] = "none"
    """subtract the group's mean outcome first"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        credit = BatchRelative(self.kl, self.baseline, self.schedule.temperature)
        return (
            replaces("credits", "episode credit", credit),
            replaces("columns", "reference"),  # the KL is in the credit
            replaces("losses", "KL"),
        )


# DAPO (Yu et al., 2025): room to explore, and no step wasted on groups that agree.
#
#     clip-higher        ε_low = 0.2, ε_high = 0.28
#     dynamic sampling   groups that all succeed or all fail carry no signal; roll out other tasks until enough do not
#     no KL, loss averaged over tokens (as GRPO here already is)
#
# What differs from GRPO: those three lines. Overlong-reward shaping is left out: our completions end at an action.


@dataclass(frozen=True)
class DAPO(GRPO):
    """GRPO with clip-higher and dynamic sampling, without KL."""

    name: ClassVar[str] = "dapo"

    clip_high: ClipHigh = 0.28
    """ε above 1"""
    kl: NotNegative = 0.0
    """β of the KL to the reference policy; 0 leaves it out"""
    rounds: AtLeastOne = 10
    """rollout rounds to look for groups that disagree, before training on what there is"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return (
            adds("selection", "selection", Mixed(self.rounds)),
            replaces("losses", "surrogate", ClippedSurrogate(self.clip_low, self.clip_high)),
        )


# GSPO (Zheng et al., 2025): the importance ratio belongs to the sequence, not to the token.
#
#     ρ = (π(y|x) / π_old(y|x))^(1/|y|),   clipped to [1 − 3e-4, 1 + 4e-4],   every sequence weighs the same
#
# What differs from GRPO: the ratio, its (far smaller) clip range, and the mean over rows. A sequence is one step's completion.


@dataclass(frozen=True)
class GSPO(GRPO):
    """GRPO with a length-normalised ratio per completion."""

    name: ClassVar[str] = "gspo"
    leads: ClassVar[bool] = True

    clip_low: ClipLow = 3e-4
    """ε below 1"""
    clip_high: ClipHigh = 4e-4
    """ε above 1"""
    kl: NotNegative = 0.0
    """β of the KL to the reference policy; 0 leaves it out"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        surrogate = ClippedSurrogate(self.clip_low, self.clip_high, ratio="sequence", over="rows")
        return (replaces("losses", "surrogate", surrogate),)


# CISPO (Chen et al., 2025): clip the weight, not the gradient.
#
#     L = −E[sg(clip(ρ, 1 − ε_low, 1 + ε_high)) · A · log π]
#
# What differs from GRPO: the loss.


@dataclass(frozen=True)
class CISPO(GRPO):
    """GRPO's credit with clipped importance weights, so that no token's gradient is lost."""

    name: ClassVar[str] = "cispo"
    leads: ClassVar[bool] = True

    clip_low: ClipLow = 1.0
    """ε below 1; 1 leaves the weight unbounded below, as published"""
    clip_high: ClipHigh = 0.2
    """ε above 1"""
    kl: NotNegative = 0.0
    """β of the KL to the reference policy; 0 leaves it out"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return (replaces("losses", "surrogate", ClippedWeight(self.clip_low, self.clip_high)),)
