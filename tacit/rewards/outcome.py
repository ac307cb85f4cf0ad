"""What an episode is worth by the world's own word: whether it succeeded, how far it came, or what each step earned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.errors import TacitError, unknown
from tacit.core.method import RewardTerm
from tacit.core.types import Group, IterationInfo, Step
from tacit.core.world import Environment

RewardSource = Literal["success", "score", "steps"]


@dataclass(frozen=True)
class Outcome(RewardTerm):
    """success   r_T = scale · 1{success}                paid at the last step
    score     r_T = scale · score, in [0, 1]          paid at the last step; a success is worth 1 at least
    steps     rₜ  = scale · what the world paid for step t
    """

    scale: float = 10.0
    of: RewardSource = "success"

    def __call__(self, groups: Sequence[Group], info: IterationInfo | None = None) -> list[Rewards]:
        if self.of == "steps":
            return [Rewards.per_step(g, self.scale * np.array([step.reward for step in g.steps])) for g in groups]
        return [
            Rewards.at_the_end(
                g, self.scale * np.array([t.score if self.of == "score" else float(t.success) for t in g.trajectories])
            )
            for g in groups
        ]


def build_outcome(world: Environment, of: RewardSource, scale: float) -> Outcome:
    """Refused where the world pays nothing for steps: every reward would be 0, and nothing would be learned."""
    if of == "steps" and not world.step_rewards:
        raise TacitError(
            f"outcome = steps: world {world.name!r} pays nothing for single steps. Choose success or score, or have its "
            "transitions carry a `reward` and say so (step_rewards=True in its Environment)."
        )
    return Outcome(scale, of)


# What it costs to write something that is not an action.


@dataclass(frozen=True)
class InvalidPenalty(RewardTerm):
    """−penalty on each step whose completion does not parse: on that step alone, so that no earlier step is blamed for it."""

    penalty: float = 0.1

    def __call__(self, groups: Sequence[Group], info: IterationInfo | None = None) -> list[Rewards]:
        return [Rewards.local(g, np.array([0.0 if s.valid else -self.penalty for s in g.steps])) for g in groups]


# What was measured on each step, as reward: progress and errors, by a tracker or by the world itself.


@dataclass(frozen=True)
class StepSignals(RewardTerm):
    """rₜ = Σ_name w_name · signalₜ[name] − cost, flowing to earlier steps as every reward does.

    With the weights below it is r_prog − r_err of the constant-context paper's Eq. 7, with the step cost of its Table 6.
    A signal of weight zero need not be there. `without` leaves out rules by name: `progress.subgoal` takes that rule's share
    off the sum `progress`, and `progress` is all of them. A rule that did not come up on a step has no share.
    """

    weights: tuple[tuple[str, float], ...] = (("progress", 1.0), ("error", -1.0))
    step_cost: float = 0.01
    without: tuple[str, ...] = ()

    def __call__(self, groups: Sequence[Group], info: IterationInfo | None = None) -> list[Rewards]:
        return [Rewards.per_step(g, np.array([self.reward(step) for step in g.steps])) for g in groups]

    def reward(self, step: Step) -> float:
        worth = -self.step_cost
        for name, weight in self.weights:
            if weight == 0.0 or name in self.without:
                continue
            if name not in step.signals:
                raise TacitError(
                    f"a step carries no signal {name!r} (it has: {', '.join(sorted(step.signals)) or 'none'}). Signals are "
                    f"measured by the world itself (Transition.signals) or by a context that follows a tracker, such as "
                    f"tacit/prompts/state_block.py; use one of them, or give {name!r} the weight 0."
                )
            left_out = sum(step.signals.get(part, 0.0) for part in self.without if part.startswith(f"{name}."))
            worth += weight * (step.signals[name] - left_out)
        return worth


def resolve_components(names: Sequence[str], world: str, components: Sequence[str]) -> tuple[str, ...]:
    """Each name as the tracker of `world` spells it: `subgoal` is `progress.subgoal`; `progress` and `error` stay as they are.

    One that is not among `components` is an error that says which there are.
    """
    kinds = {component.partition(".")[0] for component in components}
    found: list[str] = []
    for name in names:
        meant = [name] if name in kinds else [c for c in components if name in (c, c.partition(".")[2])]
        if not meant:
            rules = [component.partition(".")[2] for component in components if "." in component]
            raise unknown(f"reward component of world {world!r}", name, {*kinds, *rules})
        found += meant
    return tuple(dict.fromkeys(found))
