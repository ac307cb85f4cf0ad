"""Segmentation cost of a success (ReuseRL Eqs. 5–6).

    SegCost(s | C) = seg(s, C) / T
    r_T            = −λ · 1{success} · SegCost(s | C)

seg(s, C): the smallest number of phrases of the code C that concatenate to s. If C has only single skills, seg(s, C) = |s|, and
the cost is a penalty on episode length (Proposition 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.errors import TacitError
from tacit.core.method import RewardTerm
from tacit.core.types import Group, IterationInfo, Trajectory
from tacit.core.world import Alphabet, Environment


class Code(Protocol):
    """A dictionary of phrases, or a companion that learns one."""

    def seg(self, sequence: Sequence[str]) -> int:
        """The smallest number of phrases that concatenate to the sequence."""
        ...


@dataclass(frozen=True)
class SegmentationCost(RewardTerm):
    """−λ · seg(s, C) / T at the last step of every success; 0 for failures."""

    alphabet: Alphabet
    code: Code
    horizon: int  # T
    efficiency: float = 10.0

    def __call__(self, groups: Sequence[Group], info: IterationInfo | None = None) -> list[Rewards]:
        return [Rewards.at_the_end(g, np.array([self.reward(t) for t in g.trajectories])) for g in groups]

    def reward(self, trajectory: Trajectory) -> float:
        if not trajectory.success:
            return 0.0
        return -self.efficiency * self.code.seg(success_skills(self.alphabet, trajectory)) / self.horizon


def success_skills(alphabet: Alphabet, trajectory: Trajectory) -> tuple[str, ...]:
    """s = φ(τ) of a success. An empty sequence is a bug in the world's projection."""
    sequence = alphabet(trajectory)
    if not sequence:
        raise TacitError(
            f"the successful episode of {trajectory.task.id!r} ({len(trajectory)} steps) has no skills, so it has no "
            f"segmentation cost. Fix the projection of world {trajectory.task.world!r} so that its actions have skills."
        )
    return sequence


def world_alphabet(world: Environment, method: str) -> Alphabet:
    if world.alphabet is None:
        raise TacitError(
            f"{method} needs an alphabet of skills, but world {world.name!r} has none. Give its Environment "
            f"`alphabet=Alphabet(skills, project)` (see tacit/core/world.py), or choose a method that needs none, such as grpo."
        )
    return world.alphabet


def world_horizon(world: Environment, horizon: int | None) -> int:
    """T: `horizon`, or the world's step limit."""
    return world.max_steps if horizon is None else horizon
