"""HGPO's credit (He et al., 2026): clusters of steps with the same last observation, the same last two, and so on.

    Aᵢ = Σ_k w_k aᵢ^(k) / Σ_k w_k,   w_k = (k + 1)^α,   aᵢ^(k) = (Rᵢ − mean R) / (std R + δ)   over the cluster of depth k

k = 1 … history + 1. The sums run over the depths at which step i has peers with other returns; a step with none gets 0.
`base` adds the episode advantage as depth 0, with weight 1; without it there is no episode-level term.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.errors import TacitError
from tacit.core.method import CreditTerm, Explained
from tacit.core.protocols import Encoder
from tacit.core.types import Groups, IterationInfo
from tacit.credit.embedders import Key, key_texts
from tacit.credit.episode import Std, standardize, step_scores
from tacit.credit.partitions import by_history
from tacit.credit.step_relative import cluster_relative, explain_credit, has_spread, partition_metrics


def hierarchy(
    returns_N: np.ndarray, levels: Sequence[np.ndarray], alpha: float = 1.0, std: Std = "population", delta: float = 1e-6
) -> tuple[np.ndarray, np.ndarray]:
    """([N] Σ_k w_k a^(k), [N] Σ_k w_k) over the partitions of depth 1, 2, …"""
    weighted_N, weight_N = np.zeros(len(returns_N)), np.zeros(len(returns_N))
    for depth, cluster_N in enumerate(levels, start=1):
        weight = (depth + 1.0) ** alpha
        weighted_N += weight * cluster_relative(returns_N, cluster_N, std, delta)
        weight_N += weight * _compared(returns_N, cluster_N)
    return weighted_N, weight_N


@dataclass(frozen=True)
class HistoryHierarchy(CreditTerm):
    """`depth`: longest history compared, with the current observation; None is all of it. `key`: what the history is of."""

    depth: int | None = 3
    alpha: float = 1.0
    base: bool = False
    gamma: float = 0.95
    std: Std = "population"
    delta: float = 1e-6
    key: Key = "observation"

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth < 1:
            raise TacitError(f"depth = {self.depth} must be at least 1.")

    def __call__(
        self, groups: Groups, rewards: Sequence[Rewards], policy: Encoder | None = None, info: IterationInfo | None = None
    ) -> Explained:
        began = time.perf_counter()
        steps, first, depths, returns = [], [], [], []
        for group, reward in zip(groups, rewards, strict=True):
            seen, longest = key_texts(group.steps, self.key), int(group.lengths.max(initial=1))
            last = longest if self.depth is None else min(self.depth, longest)
            levels = [by_history(seen, group.trajectory_of_step, k) for k in range(1, max(last, 1) + 1)]
            returns_N = reward.returns_N(self.gamma)
            weighted_N, weight_N = hierarchy(returns_N, levels, self.alpha, self.std, self.delta)
            if self.base and len(group) > 1:
                weighted_N += standardize(step_scores(reward), reward.outcomes_G(), self.std, self.delta)
                weight_N += float(np.ptp(reward.outcomes_G()) > 0)
            steps.append(weighted_N / np.where(weight_N > 0, weight_N, 1.0))
            first.append(levels[0])
            returns.append(returns_N)
            depths.append(sum(_compared(returns_N, cluster_N) for cluster_N in levels))
        used = np.concatenate(depths) if depths else np.zeros(0)
        metrics = {**partition_metrics(first), "hgpo_depths": float(used.mean()) if len(used) else 0.0}
        metrics["step_credit_seconds"] = time.perf_counter() - began
        return explain_credit(groups, steps, first, metrics, {"return": returns})


def _compared(returns_N: np.ndarray, cluster_N: np.ndarray) -> np.ndarray:
    """[N] 1 if a step has peers with other returns, else 0."""
    compared_N = np.zeros(len(cluster_N))
    inside = np.flatnonzero(cluster_N >= 0)
    if len(inside):
        compared_N[inside] = has_spread(returns_N[inside], cluster_N[inside])[cluster_N[inside]]
    return compared_N
