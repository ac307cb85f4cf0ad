"""Self-imitation: what was won is imitated as well (after Oh et al., 2018, without their replay and their critic).

    B = {τ : R(τ) > mean R of its group}
    L = −E[log π_θ(a | h)]      over the tokens of B, in an optimiser step of its own after GRPO's

What differs from GRPO: that step. It is what a method that imitates its winners for a reason of its own (complementary's
`--internalise`, which imitates those who had read a note) has to be measured against.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tacit.companions.imitation import ImitationCompanion, select_above_mean
from tacit.core.bounds import AtLeastOne, NotNegative, Share
from tacit.core.composition import Part, adds
from tacit.core.resources import Resources
from tacit.core.world import Environment
from tacit.methods.grpo import GRPO


@dataclass(frozen=True)
class SelfImitation(GRPO):
    """GRPO that imitates whoever did better than the mean of its group."""

    name: ClassVar[str] = "self_imitation"

    imitation_lr: NotNegative | None = None
    """learning rate of that step; by default the schedule's"""
    imitation_every: AtLeastOne = 1
    """iterations between such steps"""
    imitation_share: Share = 1.0
    """of a group's members that may be imitated: with 0.5 about as many are as a bank's readers, who are half of a group"""
    imitation_quickest: bool = False
    """of those who did better only the ones that took the fewest turns"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        lr = self.schedule.lr if self.imitation_lr is None else self.imitation_lr
        chosen = partial(select_above_mean, share=self.imitation_share, quickest=self.imitation_quickest)
        return (adds("companions", "self-imitation", ImitationCompanion(lr, self.imitation_every, chosen)),)
