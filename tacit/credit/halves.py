"""Credit within each condition of a group (Complementary RL, Eq. 5).

    Â_c = (r − mean_c r) / (std_c r + δ)          c: with an entry, without

Guided and unguided episodes earn rewards on different scales. Compared with each other, every guided one looks good, every
unguided one bad, and training collapses (Figure 3c). The same holds for steps, so step-level credit is split too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.errors import TacitError
from tacit.core.method import CreditTerm, Explained
from tacit.core.protocols import Policy
from tacit.core.types import Group, IterationInfo


def within_conditions(term: CreditTerm) -> CreditTerm:
    """The term, applied within each condition. A term that compares no episodes is returned as it is."""
    if term.compares_groups:
        raise TacitError(
            f"advantage = split: {type(term).__name__} compares episodes across the whole batch, guided or not; "
            "use --advantage joint."
        )
    return WithinConditions(term) if term.compares_episodes else term


@dataclass(frozen=True)
class WithinConditions(CreditTerm):
    """Another credit term, applied to each condition of a group as if it were a group. With one condition it is that term."""

    term: CreditTerm

    @property
    def needs(self) -> frozenset[str]:
        return self.term.needs

    def __call__(self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo) -> Explained:
        halves, half_rewards, origins = [], [], []
        for g, (group, reward) in enumerate(zip(groups, rewards, strict=True)):
            for name in dict.fromkeys(t.condition.name for t in group.trajectories):
                members = np.array([t.condition.name == name for t in group.trajectories])
                steps = members[group.trajectory_of_step]
                half = Group(group.task, tuple(t for t, own in zip(group.trajectories, members, strict=True) if own))
                halves.append(half)
                half_rewards.append(Rewards(half, reward.flow_N[steps], reward.local_N[steps]))
                origins.append((g, steps))
        credited = self.term(halves, half_rewards, policy, info)
        totals = [Credit.zeros(group).tokens_T for group in groups]
        for (g, steps), credit in zip(origins, credited, strict=True):
            totals[g][np.repeat(steps, groups[g].tokens_per_step)] = credit.tokens_T
        credits = [Credit(group, tokens_T) for group, tokens_T in zip(groups, totals, strict=True)]
        if not isinstance(credited, Explained):
            return Explained(credits)
        return Explained(credits, credited.metrics, _merge_marks(groups, origins, credited.marks))


Marks = Mapping[str, Sequence[Any] | np.ndarray]


def _merge_marks(groups: Sequence[Group], origins: Sequence[tuple[int, np.ndarray]], marks: Sequence[Marks]) -> list[Marks]:
    """Marks of the halves, back in the order of each group's steps. `part` labels clusters: each half's labels are shifted, so
    that no two halves share one."""
    merged: list[dict[str, np.ndarray]] = [{} for _ in groups]
    for (g, steps), noted in zip(origins, marks, strict=False):  # a term may have no marks
        for name, column in noted.items():
            whole_N = merged[g].setdefault(name, np.full(len(steps), None))
            values = column.tolist() if isinstance(column, np.ndarray) else list(column)
            if name == "part":
                offset = 1 + max((label for label in whole_N if label is not None), default=-1)
                values = [label + offset if label >= 0 else label for label in values]
            for n, value in zip(np.flatnonzero(steps), values, strict=True):
                whole_N[n] = value
    return [{name: whole_N.tolist() for name, whole_N in columns.items()} for columns in merged]
