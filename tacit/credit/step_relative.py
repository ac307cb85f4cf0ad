"""Step-level credit: a step's return relative to the returns of its cluster (BiPACE's Eq. 2).

    Aᵢ = (Rᵢ − mean_C R) / (std_C R + δ)

GiGPO clusters steps by equal observations, BiGPO by similar hidden states, HGPO by equal histories (`HistoryHierarchy`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.method import CreditTerm, Explained
from tacit.core.protocols import Encoder
from tacit.core.types import Group, Groups, IterationInfo
from tacit.credit.embedders import Key, key_texts
from tacit.credit.episode import Std, standardize, step_scores
from tacit.credit.partitions import Partition, SameKey, by_history


def partition_metrics(clusters: Sequence[np.ndarray]) -> dict[str, float]:
    """Cluster statistics over all groups (BiPACE, section 4.2 and appendix L): number of clusters, share of singletons and of
    their steps, mean size, number of pairs, and mean share of a group's steps in its largest cluster (appendix M: near 1 is
    collapse). Empty without clusters."""
    counts = [np.bincount(cluster_N[cluster_N >= 0]) for cluster_N in clusters]
    sizes = np.concatenate([np.zeros(0, np.int64), *counts])
    sizes = sizes[sizes > 0]
    steps = sum(len(cluster_N) for cluster_N in clusters)
    if not len(sizes):
        return {}
    alone = int((sizes == 1).sum())
    return {
        "parts": float(len(sizes)),
        "parts_singleton": alone / len(sizes),
        "parts_singleton_steps": alone / steps,
        "parts_mean_size": float(sizes.mean()),
        "parts_pairs": float((sizes * (sizes - 1) // 2).sum()),
        "parts_largest": float(np.mean([c.max(initial=0) / len(p) for c, p in zip(counts, clusters, strict=True) if len(p)])),
    }


def cluster_relative(returns_N: np.ndarray, cluster_N: np.ndarray, std: Std = "population", delta: float = 1e-6) -> np.ndarray:
    """Aᵢ = (Rᵢ − mean_C R) / (std_C R + δ) over the cluster C of step i; `std=None` only subtracts the mean.

    Zero if the cluster has one member or no spread, or if the step is in no cluster (−1).
    """
    advantages_N = np.zeros(len(returns_N))
    inside = np.flatnonzero(cluster_N >= 0)
    if not len(inside):
        return advantages_N
    returns, cluster = returns_N[inside], cluster_N[inside]
    count_K = np.bincount(cluster)
    some_K = np.maximum(count_K, 1)
    centered = returns - (np.bincount(cluster, weights=returns) / some_K)[cluster]
    scale = np.ones(len(inside))
    if std is not None:
        freedom_K = np.maximum(count_K - (std == "sample"), 1)
        scale = np.sqrt(np.bincount(cluster, weights=centered * centered) / freedom_K)[cluster] + delta
    differs = has_spread(returns, cluster)[cluster]
    advantages_N[inside[differs]] = centered[differs] / scale[differs]
    return advantages_N


def has_spread(returns: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """[K] whether each cluster has different returns. Exact, unlike a computed variance."""
    low_K, high_K = np.full(cluster.max() + 1, np.inf), np.full(cluster.max() + 1, -np.inf)
    np.minimum.at(low_K, cluster, returns)
    np.maximum.at(high_K, cluster, returns)
    return high_K > low_K


@dataclass(frozen=True)
class StepRelative(CreditTerm):
    """w · Aᵢ, with R the discounted return of the step."""

    partition: Partition = field(default_factory=SameKey)
    weight: float = 1.0
    gamma: float = 0.95
    std: Std = "population"
    delta: float = 1e-6

    @property
    def needs(self) -> frozenset[str]:
        return self.partition.needs

    def __call__(
        self, groups: Groups, rewards: Sequence[Rewards], policy: Encoder | None = None, info: IterationInfo | None = None
    ) -> Explained:
        began = time.perf_counter()
        clusters = self.partition(groups, policy)
        returns = [reward.returns_N(self.gamma) for reward in rewards]
        steps = [
            self.weight * cluster_relative(returns_N, cluster_N, self.std, self.delta)
            for returns_N, cluster_N in zip(returns, clusters, strict=True)
        ]
        metrics = {**partition_metrics(clusters), "step_credit_seconds": time.perf_counter() - began}
        return explain_credit(groups, steps, clusters, metrics, {"return": returns})


def explain_credit(
    groups: Sequence[Group],
    steps: Sequence[np.ndarray],
    clusters: Sequence[np.ndarray],
    metrics: dict[str, float],
    columns: Mapping[str, Sequence[np.ndarray]],
) -> Explained:
    """Step-level credit, its metrics, and per-step marks for the records: cluster, credit and the term's own columns."""
    everything = {"part": clusters, "step_credit": steps, **columns}
    return Explained(
        credits=[Credit.per_step(group, values_N) for group, values_N in zip(groups, steps, strict=True)],
        metrics=metrics,
        marks=[{name: column[i] for name, column in everything.items()} for i in range(len(groups))],
    )


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
    """HGPO (He et al., 2026): clusters of steps with the same last observation, the same last two, and so on.

    Aᵢ = Σ_k w_k aᵢ^(k) / Σ_k w_k,   w_k = (k + 1)^α,   aᵢ^(k) = (Rᵢ − mean R) / (std R + δ)   over the cluster of depth k

    k = 1 … depth. The sums run over the depths at which the returns of step i's cluster differ; without any, Aᵢ = 0. `base`
    adds the episode advantage as depth 0, with weight 1; otherwise there is no episode-level term. `depth`: longest history
    compared, including the current observation; None is the whole episode. `key`: the text that is compared.
    """

    depth: int | None = 3
    alpha: float = 1.0
    base: bool = False
    gamma: float = 0.95
    std: Std = "population"
    delta: float = 1e-6
    key: Key = "observation"

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
    """[N] 1 if the returns in the step's cluster differ, else 0."""
    compared_N = np.zeros(len(cluster_N))
    inside = np.flatnonzero(cluster_N >= 0)
    if len(inside):
        compared_N[inside] = has_spread(returns_N[inside], cluster_N[inside])[cluster_N[inside]]
    return compared_N
