"""Step-level credit: a step's return relative to the returns of its cluster (BiPACE's Eq. 2), and action-level credit (PACE).

    Aᵢ = (Rᵢ − mean_C R) / (std_C R + δ)

GiGPO clusters steps by equal observations, BiGPO by similar hidden states, HGPO by equal histories (`HistoryHierarchy`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.method import CreditTerm, Explained
from tacit.core.protocols import Encoder
from tacit.core.types import Group, Groups, IterationInfo, Step
from tacit.credit.episode import Std, standardize, step_scores
from tacit.credit.partitions import Key, Partition, SameKey, by_history, by_key, key_texts


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


# PACE: action-level credit within a cluster of comparable steps (BiPACE, section 3.5). In a cluster C, C=(i) are the steps with
# the same action as step i, C≠(i) the others.
#
#     difference   Aᵢ = Rᵢ − mean_{C≠(i)} R                   (4)    leave-one-out if C≠(i) is empty
#     Q form       Aᵢ = mean_{C=(i)} R − mean_C R = Q̂ − V̂     (5–7)  leave-one-out if C=(i) = {i}
#
# Leave-one-out: Rᵢ − mean_{C∖i} R. A cluster of one gives 0.

Form = Literal["q", "difference"]  # Q-style and diff-peer in the paper's section 3.5
ActionKey = Literal["tag", "tokens"]  # action-tag and first-token in Figure 4 and Table L.1
ZERO, LEAVE_ONE_OUT, PACE = 0, 1, 2  # branches: the formula of a step's credit
BRANCHES = ("zero", "leave one out", "PACE")


def action_peers(
    returns_N: np.ndarray, cluster_N: np.ndarray, key_N: np.ndarray, form: Form = "q"
) -> tuple[np.ndarray, np.ndarray]:
    """([N] advantages, [N] branches). `cluster_N`: clusters, `key_N`: actions, both as labels from 0."""
    if not len(returns_N):
        return np.zeros(0), np.zeros(0, np.int64)
    _, pair_N = np.unique(cluster_N * (key_N.max() + 1) + key_N, return_inverse=True)
    size_N, total_N = _count_and_sum(returns_N, cluster_N)
    same_N, same_total_N = _count_and_sum(returns_N, pair_N)
    alone_N = size_N == 1
    others_N = np.where(alone_N, 1, size_N - 1)
    leave_one_out_N = returns_N - (total_N - returns_N) / others_N
    if form == "q":
        pace_N = same_total_N / same_N - total_N / size_N
        peers_N = same_N > 1
    else:
        different_N = size_N - same_N
        pace_N = returns_N - (total_N - same_total_N) / np.maximum(different_N, 1)
        peers_N = different_N > 0
    branch_N = np.where(alone_N, ZERO, np.where(peers_N, PACE, LEAVE_ONE_OUT))
    return np.choose(branch_N, [np.zeros(len(returns_N)), leave_one_out_N, pace_N]), branch_N


def action_values(returns_N: np.ndarray, cluster_N: np.ndarray, key_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([N] Q̂, [N] V̂): mean return of the step's action in its cluster, and of its cluster (Eqs. 6 and 7)."""
    if not len(returns_N):
        return np.zeros(0), np.zeros(0)
    _, pair_N = np.unique(cluster_N * (key_N.max() + 1) + key_N, return_inverse=True)
    size_N, total_N = _count_and_sum(returns_N, cluster_N)
    same_N, same_total_N = _count_and_sum(returns_N, pair_N)
    return same_total_N / same_N, total_N / size_N


def action_keys(steps: Sequence[Step], key: ActionKey = "tag", tokens: int = 8) -> np.ndarray:
    """[N] action labels: by the parsed action, or by the first completion tokens (always for invalid steps)."""
    # Tokens are a tuple, so they never equal a parsed action.
    return by_key([s.action if key == "tag" and s.valid else tuple(s.completion.tokens[:tokens].tolist()) for s in steps])


@dataclass(frozen=True)
class ActionPeers(StepRelative):
    """w · Aᵢ. With `std`, divided by the standard deviation of the cluster's returns; Eqs. 4–7 do not divide."""

    std: Std = None
    form: Form = "q"
    key: ActionKey = "tag"
    key_tokens: int = 8

    def __call__(
        self, groups: Groups, rewards: Sequence[Rewards], policy: Encoder | None = None, info: IterationInfo | None = None
    ) -> Explained:
        began = time.perf_counter()
        clusters = self.partition(groups, policy)
        keys = [action_keys(group.steps, self.key, self.key_tokens) for group in groups]
        steps: list[np.ndarray] = []
        columns: dict[str, list[np.ndarray]] = {"return": [], "q": [], "v": [], "branch": []}
        for reward, cluster_N, key_N in zip(rewards, clusters, keys, strict=True):
            returns_N = reward.returns_N(self.gamma)
            values_N, branch_N = action_peers(returns_N, cluster_N, key_N, self.form)
            if self.std is not None and len(values_N):
                size_N, total_N = _count_and_sum(returns_N, cluster_N)
                _, squares_N = _count_and_sum((returns_N - total_N / size_N) ** 2, cluster_N)
                values_N = values_N / (np.sqrt(squares_N / np.maximum(size_N - (self.std == "sample"), 1)) + self.delta)
            steps.append(self.weight * values_N)
            row = (returns_N, *action_values(returns_N, cluster_N, key_N), branch_N)
            for column, column_N in zip(columns.values(), row, strict=True):
                column.append(column_N)
        parsed = [np.array([step.valid for step in group.steps], bool) for group in groups]
        metrics = {**partition_metrics(clusters), **pace_metrics(clusters, keys, columns["branch"], parsed)}
        metrics["step_credit_seconds"] = time.perf_counter() - began
        return explain_credit(groups, steps, clusters, metrics, columns)


def pace_metrics(
    clusters: Sequence[np.ndarray], keys: Sequence[np.ndarray], branches: Sequence[np.ndarray], parsed: Sequence[np.ndarray]
) -> dict[str, float]:
    """Share of steps per branch; for clusters with several steps, mean number of actions and share with two or more; share of
    parsed completions. Empty without steps."""
    branch_N = np.concatenate(branches) if branches else np.zeros(0)
    if not len(branch_N):
        return {}
    actions = [np.zeros(0, np.int64)]
    for cluster_N, key_N in zip(clusters, keys, strict=True):
        if len(cluster_N):
            pairs = np.unique(np.stack([cluster_N, key_N]), axis=1)
            actions.append(np.bincount(pairs[0], minlength=cluster_N.max() + 1)[np.bincount(cluster_N) >= 2])
    actions_K = np.concatenate(actions)
    share = np.bincount(branch_N, minlength=3) / len(branch_N)
    return {
        "pace_zero": float(share[ZERO]),
        "pace_leave_one_out": float(share[LEAVE_ONE_OUT]),
        "pace_used": float(share[PACE]),
        "pace_keys_per_part": float(actions_K.mean()) if len(actions_K) else 0.0,
        "pace_parts_contrasted": float((actions_K >= 2).mean()) if len(actions_K) else 0.0,
        "pace_parsed": float(np.concatenate(parsed).mean()),
    }


def _count_and_sum(values_N: np.ndarray, label_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([N] number of steps, [N] sum of values) with the label of each step."""
    return np.bincount(label_N)[label_N], np.bincount(label_N, weights=values_N)[label_N]
