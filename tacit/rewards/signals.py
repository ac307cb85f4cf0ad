"""What was measured on each step, as reward: a tracker's progress and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.errors import TacitError
from tacit.core.types import Group, Step


@dataclass(frozen=True)
class StepSignals:
    """rₜ = Σ_name w_name · signalₜ[name] − cost, flowing to earlier steps as every reward does.

    With the weights below it is r_prog − r_err of the constant-context paper's Eq. 7, with the step cost of its Table 6.
    A signal of weight zero need not be there.
    """

    weights: tuple[tuple[str, float], ...] = (("progress", 1.0), ("error", -1.0))
    step_cost: float = 0.01

    def __call__(self, groups: Sequence[Group]) -> list[Rewards]:
        return [Rewards.per_step(g, np.array([self.reward(step) for step in g.steps])) for g in groups]

    def reward(self, step: Step) -> float:
        worth = -self.step_cost
        for name, weight in self.weights:
            if weight == 0.0:
                continue
            if name not in step.signals:
                raise TacitError(
                    f"a step carries no signal {name!r} (it has: {', '.join(sorted(step.signals)) or 'none'}). Signals are "
                    f"measured by a context that follows a tracker, such as tacit/contexts/state_block.py; use it, or give "
                    f"{name!r} the weight 0."
                )
            worth += weight * step.signals[name]
        return worth
