"""Credit within each condition of a group (Complementary RL, Eq. 5).

    Â_c = (r − mean_c r) / (std_c r + δ)          c: with an entry, without

Episodes that were guided and episodes that were not earn on different scales; compared with each other, every guided one looks
good and every free one bad, and training collapses (Figure 3c).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.method import CreditTerm
from tacit.core.moment import Moment
from tacit.core.protocols import Policy
from tacit.core.types import Group


@dataclass(frozen=True)
class WithinConditions:
    """Another credit term, applied to each condition of a group as if it were a group of its own."""

    term: CreditTerm

    @property
    def needs(self) -> frozenset[str]:
        return getattr(self.term, "needs", frozenset())

    def __call__(self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, moment: Moment) -> list[Credit]:
        parts, earned, places = [], [], []
        for g, (group, reward) in enumerate(zip(groups, rewards, strict=True)):
            for name in dict.fromkeys(t.condition.name for t in group.trajectories):
                members = np.array([t.condition.name == name for t in group.trajectories])
                steps = members[group.trajectory_of_step]
                part = Group(group.task, tuple(t for t, own in zip(group.trajectories, members, strict=True) if own))
                parts.append(part)
                earned.append(Rewards(part, reward.flow_N[steps], reward.local_N[steps]))
                places.append((g, np.repeat(steps, group.tokens_per_step)))
        totals = [Credit.zeros(group).tokens_T.copy() for group in groups]
        for (g, tokens), credit in zip(places, self.term(parts, earned, policy, moment), strict=True):
            totals[g][tokens] = credit.tokens_T
        return [Credit(group, tokens_T) for group, tokens_T in zip(groups, totals, strict=True)]
