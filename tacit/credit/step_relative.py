"""Step-level credit: a step's return relative to the returns of its cluster (BiPACE's Eq. 2).

    Aᵢ = (Rᵢ − mean_C R) / (std_C R + δ)

GiGPO clusters steps by equal observations, BiGPO by similar hidden states.
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
from tacit.credit.episode import Std
from tacit.credit.partitions import Partition, SameKey


def partition_metrics(clusters: Sequence[np.ndarray]) -> dict[str, float]:
    """The singleton tax (BiPACE, section 4.2 and appendix L), over all groups: number of clusters, share of singletons and of
    their steps, mean size, pairs, and the share of a group's steps in its largest cluster (appendix M: near 1 is collapse)."""
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
    """[K] whether each cluster has two different returns. Exact, unlike a computed variance."""
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
