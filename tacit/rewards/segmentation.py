"""What it costs a success to be written down: few reused phrases are cheap, one-off steps are not (ReuseRL Eqs. 5–6).

    SegCost(s | C) = seg(s, C) / T
    r_T            = −λ · 1{success} · SegCost(s | C)

`seg(s, C)` is the fewest phrases of the code C that spell s. Where C holds single skills only, seg(s, C) = |s|, and this is
the penalty on round length (Proposition 1): the same term with another code.
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
    """Whatever can say how many phrases a sequence of skills takes: a dictionary, or a companion that learns one."""

    def seg(self, sequence: Sequence[str]) -> int: ...


@dataclass(frozen=True)
class SegmentationCost(RewardTerm):
    """−λ · seg(s, C) / T at the last step of every success; failures pay nothing, so that solving is never discouraged."""

    alphabet: Alphabet
    code: Code
    horizon: int
    """T"""
    efficiency: float = 10.0

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        if not self.efficiency >= 0:
            raise TacitError(f"efficiency = {self.efficiency} would pay for waste: λ must be zero or more.")

    def __call__(self, groups: Sequence[Group], info: IterationInfo | None = None) -> list[Rewards]:
        return [Rewards.at_the_end(g, np.array([self.reward(t) for t in g.trajectories])) for g in groups]

    def reward(self, trajectory: Trajectory) -> float:
        if not trajectory.success:
            return 0.0
        return -self.efficiency * self.code.seg(success_skills(self.alphabet, trajectory)) / self.horizon


def success_skills(alphabet: Alphabet, trajectory: Trajectory) -> tuple[str, ...]:
    """s = φ(τ) of a success. Something was done to succeed, so a sequence without a skill is a mistake of the projection."""
    sequence = alphabet(trajectory)
    if not sequence:
        raise TacitError(
            f"the success of {trajectory.task.id!r} ({len(trajectory)} steps) projects to no skill at all; an empty sequence "
            f"has no segmentation cost. Let the projection of world {trajectory.task.world!r} give its actions skills."
        )
    return sequence


def cap_efficiency(efficiency: float, success: float, said: frozenset[str]) -> tuple[float, tuple[str, ...]]:
    """λ where a success earns so much, and what to say of it. Added to a method whose success is worth less than λ, a long
    success would cost more than failing; so λ is then what a success is worth, unless somebody said otherwise."""
    if "efficiency" in said or efficiency <= success:
        return efficiency, ()
    return success, (f"efficiency = {success:g}, so that no success is worth less than a failure",)


def world_alphabet(world: Environment, method: str) -> Alphabet:
    if world.alphabet is None:
        raise TacitError(
            f"{method} describes behaviour in atomic skills, and world {world.name!r} has no alphabet. Give its Environment "
            f"`alphabet=Alphabet(skills, project)` (see tacit/core/world.py), or choose a method that needs none, such as grpo."
        )
    return world.alphabet


def world_horizon(world: Environment, horizon: int | None) -> int:
    """T: the number given, otherwise the world's step limit."""
    return check_horizon(world.max_steps if horizon is None else horizon)


def check_horizon(horizon: int) -> int:
    if horizon < 1:
        raise TacitError(
            f"T = {horizon}: segmentation costs are divided by T, the longest an episode may be; it must be 1 or more."
        )
    return horizon
