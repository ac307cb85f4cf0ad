"""Variants of GRPO that change one equation: RLOO, REINFORCE++, DAPO, GSPO, CISPO."""

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
    """group: subtract the group's mean outcome first"""

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

    What differs from GRPO: these. Overlong-reward shaping is left out: completions end at an action.
    """

    name: ClassVar[str] = "dapo"

    clip_high: ClipHigh = 0.28
    """ε above 1"""
    kl: NotNegative = 0.0
    """β of the KL to the reference policy; 0 turns it off"""
    rounds: AtLeastOne = 10
    """most rollout rounds in search of groups with mixed outcomes; after that, train on what there is"""

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
    """ε below 1"""
    clip_high: ClipHigh = 4e-4
    """ε above 1"""
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
    """ε below 1; 1: no lower bound, as published"""
    clip_high: ClipHigh = 0.2
    """ε above 1"""
    kl: NotNegative = 0.0
    """β of the KL to the reference policy; 0 turns it off"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        return (replaces("losses", "surrogate", ClippedWeight(self.clip_low, self.clip_high)),)
