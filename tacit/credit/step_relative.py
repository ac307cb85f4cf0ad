"""Credit by step: a step is worth what followed it against what followed its peers, the steps in the same part.

GiGPO (Feng et al., 2025) takes steps with the same observation for peers, BiGPO steps with nearby hidden states; the
arithmetic is the same (BiPACE's Eq. 2).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.method import Explained
from tacit.core.moment import Moment
from tacit.core.protocols import Encoder
from tacit.core.types import Group
from tacit.credit.diagnostics import partition_metrics
from tacit.credit.episode import Std
from tacit.credit.keys import Key, key_texts
from tacit.credit.partitions import Partition, SameObservation, by_key


def part_relative(returns_N: np.ndarray, part_N: np.ndarray, std: Std = "population", delta: float = 1e-6) -> np.ndarray:
    """Aᵢ = (Rᵢ − mean_C R) / (std_C R + δ) over the part C of step i; `std=None` only subtracts the mean.

    Zero where a part has one member or no spread, and where a step is in no part (−1).
    """
    advantages_N = np.zeros(len(returns_N))
    inside = np.flatnonzero(part_N >= 0)
    if not len(inside):
        return advantages_N
    returns, part = returns_N[inside], part_N[inside]
    count_K = np.bincount(part)
    some_K = np.maximum(count_K, 1)
    centred = returns - (np.bincount(part, weights=returns) / some_K)[part]
    scale = np.ones(len(inside))
    if std is not None:
        freedom_K = np.maximum(count_K - (std == "sample"), 1)
        scale = np.sqrt(np.bincount(part, weights=centred * centred) / freedom_K)[part] + delta
    differs = spread(returns, part)[part]
    advantages_N[inside[differs]] = centred[differs] / scale[differs]
    return advantages_N


def spread(returns: np.ndarray, part: np.ndarray) -> np.ndarray:
    """[K] whether the members of each part differ at all: exactly, where a computed variance would leave dust."""
    low_K, high_K = np.full(part.max() + 1, np.inf), np.full(part.max() + 1, -np.inf)
    np.minimum.at(low_K, part, returns)
    np.maximum.at(high_K, part, returns)
    return high_K > low_K


@dataclass(frozen=True)
class Same:
    """Steps that are equal in what the key names; by observation it is `SameObservation`."""

    key: Key = "observation"

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        return [by_key(key_texts(group.steps, self.key)) for group in groups]


@dataclass(frozen=True)
class StepRelative:
    """w · (R − mean_C R) / (std_C R + δ), with R the discounted return of the step."""

    partition: Partition = field(default_factory=SameObservation)
    weight: float = 1.0
    gamma: float = 0.95
    std: Std = "population"
    delta: float = 1e-6

    @property
    def needs(self) -> frozenset[str]:
        return getattr(self.partition, "needs", frozenset())

    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Encoder | None = None, moment: Moment | None = None
    ) -> Explained:
        began = time.perf_counter()
        parts = self.partition(groups, policy)
        returns = [reward.returns_N(self.gamma) for reward in rewards]
        steps = [
            self.weight * part_relative(returns_N, part_N, self.std, self.delta)
            for returns_N, part_N in zip(returns, parts, strict=True)
        ]
        metrics = {**partition_metrics(parts), "step_credit_seconds": time.perf_counter() - began}
        return explain(groups, steps, parts, metrics, {"return": returns})


def explain(
    groups: Sequence[Group],
    steps: Sequence[np.ndarray],
    parts: Sequence[np.ndarray],
    metrics: dict[str, float],
    columns: Mapping[str, Sequence[np.ndarray]],
) -> Explained:
    """Step-level credit with its metrics, and for the records which part each step was in, what it got there, and whatever else
    the term has one number per step of."""
    everything = {"part": parts, "step_credit": steps, **columns}
    return Explained(
        credits=[Credit.per_step(group, values_N) for group, values_N in zip(groups, steps, strict=True)],
        metrics=metrics,
        marks=[{name: column[i] for name, column in everything.items()} for i in range(len(groups))],
    )
