"""Credit whose size follows a teacher, and whose sign stays the outcome's (RLSD).

    A_token = A · ((1 − l) + l · clip(exp(sign(A) · (log q(a) − log p(a))), 1 − ε, 1 + ε))        l: decays over the run

A token of a good episode counts more where the teacher finds it likelier, of a bad one where it finds it less likely. A
teacher that is the student leaves A as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.engine import SCORING
from tacit.core.method import CreditTerm, Explained
from tacit.core.moment import Moment
from tacit.core.protocols import Policy
from tacit.core.skills import Teacher
from tacit.core.types import Group
from tacit.credit.skill_shift import skill_shifts


@dataclass(frozen=True)
class Modulated:
    credit: CreditTerm
    """A"""
    teacher: Teacher
    share: float = 0.5
    """l at the start"""
    bound: float = 0.2
    """ε"""
    until: int = 100
    """iterations after which l is 0, having fallen linearly"""
    needs: ClassVar[frozenset[str]] = frozenset({SCORING})

    def __call__(self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, moment: Moment) -> Explained:
        plain = self.credit(groups, rewards, policy, moment)
        known = plain.metrics if isinstance(plain, Explained) else {}
        share = self.share * max(0.0, 1.0 - (moment.iteration - 1) / self.until)
        if not share:
            return Explained(list(plain), {**known, "modulation": 0.0})
        shifts = skill_shifts(groups, [self.teacher.prompts(group, policy) for group in groups], policy)
        credits = [
            Credit(group, modulated(own.tokens_T, shift_T, share, self.bound))
            for group, own, shift_T in zip(groups, plain, shifts, strict=True)
        ]
        return Explained(credits, {**known, "modulation": share})


def modulated(credit_T: np.ndarray, ahead_T: np.ndarray, share: float, bound: float) -> np.ndarray:
    """`ahead` is log q(a) − log p(a)."""
    factor_T = np.clip(np.exp(np.sign(credit_T) * ahead_T), 1 - bound, 1 + bound)
    return credit_T * ((1 - share) + share * factor_T)
