"""What an episode is worth by the world's own word: whether it succeeded, how far it came, or what each step earned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.errors import TacitError
from tacit.core.moment import Moment
from tacit.core.types import Group
from tacit.core.world import Environment

Worth = Literal["success", "score", "steps"]


@dataclass(frozen=True)
class Outcome:
    """success   r_T = scale · 1{success}                paid at the last step
    score     r_T = scale · score, in [0, 1]          paid at the last step; a success is worth 1 at least
    steps     rₜ  = scale · what the world paid for step t
    """

    scale: float = 10.0
    of: Worth = "success"

    def __call__(self, groups: Sequence[Group], moment: Moment | None = None) -> list[Rewards]:
        if self.of == "steps":
            return [Rewards.per_step(g, self.scale * np.array([step.reward for step in g.steps])) for g in groups]
        return [
            Rewards.at_the_end(
                g, self.scale * np.array([t.score if self.of == "score" else float(t.success) for t in g.trajectories])
            )
            for g in groups
        ]


def outcome_of(world: Environment, of: Worth, scale: float) -> Outcome:
    """Refused where the world pays nothing for steps: every reward would be 0, and nothing would be learned."""
    if of == "steps" and not world.step_rewards:
        raise TacitError(
            f"outcome = steps: world {world.name!r} pays nothing for single steps. Choose success or score, or have its "
            "transitions carry a `reward` and say so (step_rewards=True in its Environment)."
        )
    return Outcome(scale, of)
