"""Credit within each condition of a group (Complementary RL, Eq. 5).

    Â_c = (r − mean_c r) / (std_c r + δ)          c: with an entry, without

Episodes that were guided and episodes that were not earn on different scales; compared with each other, every guided one looks
good and every free one bad, and training collapses (Figure 3c). That holds for single steps too: of a guided and a free one
in the same place, the guided one would be praised for the note it had read. So whatever compares episodes or steps compares
them within their condition: GRPO's credit, and a step credit beside it.
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
    """The term, held to comparing like with like. One that compares nobody stays as it is."""
    if term.compares_groups:
        raise TacitError(
            f"advantage = split: {type(term).__name__} holds an episode against the whole batch, guided and free alike; "
            "with --advantage joint it may."
        )
    return WithinConditions(term) if term.compares_episodes else term


@dataclass(frozen=True)
class WithinConditions(CreditTerm):
    """Another credit term, applied to each condition of a group as if it were a group of its own. Where all members have one
    condition it is that term."""

    term: CreditTerm

    @property
    def needs(self) -> frozenset[str]:
        return self.term.needs

    def __call__(self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo) -> Explained:
        halves, earned, places = [], [], []
        for g, (group, reward) in enumerate(zip(groups, rewards, strict=True)):
            for name in dict.fromkeys(t.condition.name for t in group.trajectories):
                members = np.array([t.condition.name == name for t in group.trajectories])
                steps = members[group.trajectory_of_step]
                half = Group(group.task, tuple(t for t, own in zip(group.trajectories, members, strict=True) if own))
                halves.append(half)
                earned.append(Rewards(half, reward.flow_N[steps], reward.local_N[steps]))
                places.append((g, steps))
        given = self.term(halves, earned, policy, info)
        totals = [Credit.zeros(group).tokens_T for group in groups]
        for (g, steps), credit in zip(places, given, strict=True):
            totals[g][np.repeat(steps, groups[g].tokens_per_step)] = credit.tokens_T
        credits = [Credit(group, tokens_T) for group, tokens_T in zip(groups, totals, strict=True)]
        if not isinstance(given, Explained):
            return Explained(credits)
        return Explained(credits, given.metrics, _together(groups, places, given.marks))


Marks = Mapping[str, Sequence[Any] | np.ndarray]


def _together(groups: Sequence[Group], places: Sequence[tuple[int, np.ndarray]], marks: Sequence[Marks]) -> list[Marks]:
    """What was noted of each half's steps, at their places in the group. `part` labels who was compared with whom: it counts on
    from one half to the next, so that no two share a label."""
    joined: list[dict[str, np.ndarray]] = [{} for _ in groups]
    for (g, steps), noted in zip(places, marks, strict=False):  # a term may have nothing to note
        for name, column in noted.items():
            whole_N = joined[g].setdefault(name, np.full(len(steps), None))
            values = column.tolist() if isinstance(column, np.ndarray) else list(column)
            if name == "part":
                taken = 1 + max((label for label in whole_N if label is not None), default=-1)
                values = [label + taken if label >= 0 else label for label in values]
            for n, value in zip(np.flatnonzero(steps), values, strict=True):
                whole_N[n] = value
    return [{name: whole_N.tolist() for name, whole_N in columns.items()} for columns in joined]
