"""KL to the reference as a reward, as in RLHF: inside the return instead of in the loss.

    rₜ ← rₜ − β (log π(aₜ | xₜ) − log π_ref(aₜ | xₜ))         log π as it was when the action was sampled

The reward is not differentiated, but through the policy gradient it pulls toward the reference, also on earlier steps that lead
away from it. `observe` makes one scoring pass; the reward term reads its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.method import Companion, RewardTerm
from tacit.core.protocols import REFERENCE, SCORING, Policy
from tacit.core.types import Group, IterationInfo, flat_steps


@dataclass
class ReferencePenalty(RewardTerm, Companion):
    """A companion and a reward term in one."""

    beta: float = 0.02
    temperature: float = 1.0
    name = "reference_penalty"
    read_in_rollouts: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({SCORING, REFERENCE})
    _drift: dict[int, float] = field(default_factory=dict, init=False, compare=False, repr=False)
    """id(step) -> log ratio, of this iteration"""

    def observe(self, groups: Sequence[Group], policy: Policy, info: IterationInfo | None = None) -> dict[str, float]:
        steps = flat_steps(groups)
        prompts, completions = [s.prompt_tokens for s in steps], [s.completion.tokens for s in steps]
        reference = policy.reference().logprobs(prompts, completions, self.temperature) if steps else []
        drift = [float(np.sum(s.completion.logprobs - r)) for s, r in zip(steps, reference, strict=True)]
        self._drift = {id(step): value for step, value in zip(steps, drift, strict=True)}
        return {"reference_drift": float(np.mean(drift)) if drift else 0.0}

    def __call__(self, groups: Sequence[Group], info: IterationInfo | None = None) -> list[Rewards]:
        return [Rewards.per_step(g, -self.beta * np.array([self._drift[id(step)] for step in g.steps])) for g in groups]
