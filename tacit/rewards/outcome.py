"""Reward terms: outcome of the episode, invalid-action penalty, step signals, and a penalty for leaving the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.errors import TacitError, unknown
from tacit.core.method import Companion, RewardTerm
from tacit.core.protocols import REFERENCE, SCORING, Policy
from tacit.core.types import Group, IterationInfo, Step, flat_steps
from tacit.core.world import Environment

RewardSource = Literal["success", "score", "steps"]


@dataclass(frozen=True)
class Outcome(RewardTerm):
    """success   r_T = scale · 1{success}          at the last step
    score     r_T = scale · score               at the last step; the score is in [0, 1], and 1 for a success
    steps     rₜ  = scale · the world's reward of step t
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
    """The outcome reward. Refuses `steps` in a world without step rewards."""
    if of == "steps" and not world.step_rewards:
        raise TacitError(
            f"outcome = steps: world {world.name!r} has no step rewards. Choose success or score, or set "
            "`Transition.reward` in the world and step_rewards=True in its Environment."
        )
    return Outcome(scale, of)


@dataclass(frozen=True)
class InvalidPenalty(RewardTerm):
    """−penalty on each step whose completion is invalid; it does not enter the returns of earlier steps."""

    penalty: float = 0.1

    def __call__(self, groups: Sequence[Group], info: IterationInfo | None = None) -> list[Rewards]:
        return [Rewards.local(g, np.array([0.0 if s.valid else -self.penalty for s in g.steps])) for g in groups]


@dataclass(frozen=True)
class StepSignals(RewardTerm):
    """rₜ = Σ_name w_name · signalₜ[name] − cost

    The defaults are r_prog − r_err of the constant-context paper's Eq. 7, with the step cost of its Table 6. Signals come from
    a tracker or from the world. A signal of weight 0 may be missing. `without` removes rules by name: `progress.subgoal`
    subtracts that rule's share from the sum `progress`, and `progress` removes all of it.
    """

    weights: tuple[tuple[str, float], ...] = (("progress", 1.0), ("error", -1.0))
    step_cost: float = 0.01
    without: tuple[str, ...] = ()

    def __call__(self, groups: Sequence[Group], info: IterationInfo | None = None) -> list[Rewards]:
        return [Rewards.per_step(g, np.array([self.reward(step) for step in g.steps])) for g in groups]

    def reward(self, step: Step) -> float:
        reward = -self.step_cost
        for name, weight in self.weights:
            if weight == 0.0 or name in self.without:
                continue
            if name not in step.signals:
                raise TacitError(
                    f"a step has no signal {name!r} (it has: {', '.join(sorted(step.signals)) or 'none'}). Signals come from "
                    f"the world (Transition.signals) or from a context with a tracker, such as tacit/prompts/history.py; "
                    f"use one of them, or give {name!r} the weight 0."
                )
            left_out = sum(step.signals.get(part, 0.0) for part in self.without if part.startswith(f"{name}."))
            reward += weight * (step.signals[name] - left_out)
        return reward


def resolve_components(names: Sequence[str], world: str, components: Sequence[str]) -> tuple[str, ...]:
    """Full names of reward components: `subgoal` is `progress.subgoal`; `progress` and `error` stay. Refuses unknown names."""
    kinds = {component.partition(".")[0] for component in components}
    resolved: list[str] = []
    for name in names:
        matches = [name] if name in kinds else [c for c in components if name in (c, c.partition(".")[2])]
        if not matches:
            rules = [component.partition(".")[2] for component in components if "." in component]
            raise unknown(f"reward component of world {world!r}", name, {*kinds, *rules})
        resolved += matches
    return tuple(dict.fromkeys(resolved))


@dataclass
class ReferencePenalty(RewardTerm, Companion):
    """A companion and a reward term in one.

    rₜ ← rₜ − β (log π(aₜ | xₜ) − log π_ref(aₜ | xₜ))         log π as it was when the action was sampled

    The reward is not differentiated; the policy gradient then pulls toward the reference, also on earlier steps that lead away
    from it. `observe` makes one scoring pass; the reward term uses its result.
    """

    beta: float = 0.02
    temperature: float = 1.0
    name = "reference_penalty"
    read_in_rollouts: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({SCORING, REFERENCE})
    _drift: dict[int, float] = field(default_factory=dict, init=False, compare=False, repr=False)
    """id(step) -> log ratio, in this iteration"""

    def observe(self, groups: Sequence[Group], policy: Policy, info: IterationInfo | None = None) -> dict[str, float]:
        steps = flat_steps(groups)
        prompts, completions = [s.prompt_tokens for s in steps], [s.completion.tokens for s in steps]
        reference = policy.reference().logprobs(prompts, completions, self.temperature) if steps else []
        drift = [float(np.sum(s.completion.logprobs - r)) for s, r in zip(steps, reference, strict=True)]
        self._drift = {id(step): value for step, value in zip(steps, drift, strict=True)}
        return {"reference_drift": float(np.mean(drift)) if drift else 0.0}

    def __call__(self, groups: Sequence[Group], info: IterationInfo | None = None) -> list[Rewards]:
        return [Rewards.per_step(g, -self.beta * np.array([self._drift[id(step)] for step in g.steps])) for g in groups]
