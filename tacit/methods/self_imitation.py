"""Self-imitation of above-average episodes (after Oh et al., 2018, without replay and critic).

    B = {τ : R(τ) > mean R of its group}
    L = −E[log π_θ(a | h)]      over the tokens of B, in a separate optimizer step after GRPO's

What differs from GRPO: that step. It is the baseline for complementary's `--internalise`, which imitates guided successes.
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
    """GRPO plus imitation of episodes above the mean of their group."""

    name: ClassVar[str] = "self_imitation"

    imitation_lr: NotNegative | None = None
    """learning rate of that step; default: the schedule's"""
    imitation_every: AtLeastOne = 1
    """iterations between such steps"""
    imitation_share: Share = 1.0
    """largest share of a group that is imitated; 0.5 matches complementary, where half of a group is guided"""
    imitation_quickest: bool = False
    """imitate only those with the fewest turns"""

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        lr = self.schedule.lr if self.imitation_lr is None else self.imitation_lr
        chosen = partial(select_above_mean, share=self.imitation_share, quickest=self.imitation_quickest)
        return (adds("companions", "self-imitation", ImitationCompanion(lr, self.imitation_every, chosen)),)
