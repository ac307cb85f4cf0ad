"""What the episode's end is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.moment import Moment
from tacit.core.types import Group


@dataclass(frozen=True)
class Outcome:
    """r_T = scale · 1{success}, or scale · score where `graded`; paid at the last step."""

    scale: float = 10.0
    graded: bool = False

    def __call__(self, groups: Sequence[Group], moment: Moment | None = None) -> list[Rewards]:
        return [
            Rewards.at_the_end(g, self.scale * np.array([t.score if self.graded else float(t.success) for t in g.trajectories]))
            for g in groups
        ]
