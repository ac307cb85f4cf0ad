"""What steps were worth (`Rewards`) and which token gets how much of it (`Credit`): small algebras on flat arrays.

Both belong to one group and add up, so a method reads like its paper: `episode + w * step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.types import Group


@dataclass(frozen=True, eq=False)
class Rewards:
    """Rewards of one group's N flat steps.

    `flow_N` enters the return of its step and of every earlier step. `local_N` is blamed on its own step alone, as the
    penalty for an action that does not parse.
    """

    group: Group
    flow_N: np.ndarray
    local_N: np.ndarray

    @classmethod
    def zeros(cls, group: Group) -> Rewards:
        n = len(group.steps)
        return cls(group, np.zeros(n), np.zeros(n))

    @classmethod
    def per_step(cls, group: Group, values_N: np.ndarray) -> Rewards:
        return cls(group, _sized(values_N, len(group.steps), "step"), np.zeros(len(group.steps)))

    @classmethod
    def local(cls, group: Group, values_N: np.ndarray) -> Rewards:
        return cls(group, np.zeros(len(group.steps)), _sized(values_N, len(group.steps), "step"))

    @classmethod
    def at_the_end(cls, group: Group, values_G: np.ndarray) -> Rewards:
        """One number per trajectory, paid at its last step. A trajectory without steps has nowhere to put it."""
        values_G = _sized(values_G, len(group), "trajectory")
        flow_N = np.zeros(len(group.steps))
        has_steps = group.lengths > 0
        flow_N[np.cumsum(group.lengths)[has_steps] - 1] = values_G[has_steps]
        return cls(group, flow_N, np.zeros_like(flow_N))

    def __add__(self, other: Rewards) -> Rewards:
        _same_group(self.group, other.group)
        return Rewards(self.group, self.flow_N + other.flow_N, self.local_N + other.local_N)

    def outcomes_G(self) -> np.ndarray:
        """Undiscounted sum of flowing rewards per trajectory."""
        return np.bincount(self.group.trajectory_of_step, weights=self.flow_N, minlength=len(self.group))

    def returns_N(self, gamma: float) -> np.ndarray:
        """R_t = r_t + γ R_{t+1} over the flowing rewards of each trajectory, plus the step's own local part."""
        returns_N = self.flow_N.astype(np.float64).copy()
        start = 0
        for length in self.group.lengths:
            for t in range(start + length - 2, start - 1, -1):
                returns_N[t] += gamma * returns_N[t + 1]
            start += length
        return returns_N + self.local_N


@dataclass(frozen=True, eq=False)
class Credit:
    """Per-token advantages of one group, flat: the tokens of step 0, then of step 1, …"""

    group: Group
    tokens_T: np.ndarray

    @classmethod
    def zeros(cls, group: Group) -> Credit:
        return cls(group, np.zeros(int(group.tokens_per_step.sum())))

    @classmethod
    def per_step(cls, group: Group, values_N: np.ndarray) -> Credit:
        """Every token of a step gets the step's value."""
        values_N = _sized(values_N, len(group.steps), "step")
        return cls(group, np.repeat(values_N, group.tokens_per_step))

    @classmethod
    def per_token(cls, group: Group, values: list[np.ndarray]) -> Credit:
        """One array per step, one number per completion token."""
        tokens_T = np.concatenate(values) if values else np.zeros(0)
        return cls(group, _sized(tokens_T, int(group.tokens_per_step.sum()), "completion token"))

    def __add__(self, other: Credit) -> Credit:
        _same_group(self.group, other.group)
        return Credit(self.group, self.tokens_T + other.tokens_T)

    def __mul__(self, weight: float) -> Credit:
        return Credit(self.group, weight * self.tokens_T)

    __rmul__ = __mul__

    def steps(self) -> list[np.ndarray]:
        """The advantages of each step's tokens, in step order."""
        return np.split(self.tokens_T, np.cumsum(self.group.tokens_per_step)[:-1]) if self.group.steps else []


K = TypeVar("K", Rewards, Credit)


def given_by(term: object, found: Any, groups: Sequence[Group], kind: type[K]) -> Sequence[K]:
    """What a term of a method returned: one of this kind for each group, its numbers finite. Anything else is explained."""
    name = type(term).__name__
    kinds = [type(one).__name__ for one in found] if isinstance(found, Sequence) else None
    if kinds is None or len(kinds) != len(groups) or not all(isinstance(one, kind) for one in found):
        seen = (
            f"[{', '.join(kinds[:3])}{', …' if len(kinds) > 3 else ''}], of length {len(kinds)}" if kinds is not None else found
        )
        wanted = f"a list with one {kind.__name__} for each of the {len(groups)} groups"
        raise TacitError(f"the term {name} must return {wanted}, and returned {seen}.")
    for one in found:
        numbers = one.flow_N + one.local_N if isinstance(one, Rewards) else one.tokens_T
        if not np.isfinite(numbers).all():
            wrong = numbers[~np.isfinite(numbers)][0]
            raise TacitError(
                f"the term {name} gave {wrong} in the group of task {one.group.task.id!r}; its numbers must be finite."
            )
    return found


def _sized(values: np.ndarray, size: int, of: str) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (size,):
        raise ValueError(f"expected one number per {of} ({size}), got an array of shape {values.shape}")
    return values


def _same_group(a: Group, b: Group) -> None:
    if a is not b:
        raise ValueError(f"cannot add terms of two different groups ({a.task.id} and {b.task.id})")
