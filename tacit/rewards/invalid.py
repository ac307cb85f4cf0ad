"""What it costs to write something that is not an action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.moment import Moment
from tacit.core.types import Group


@dataclass(frozen=True)
class InvalidPenalty:
    """−penalty on each step whose completion does not parse: on that step alone, so that no earlier step is blamed for it."""

    penalty: float = 0.1

    def __call__(self, groups: Sequence[Group], moment: Moment | None = None) -> list[Rewards]:
        return [Rewards.local(g, np.array([0.0 if s.valid else -self.penalty for s in g.steps])) for g in groups]
