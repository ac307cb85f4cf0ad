"""PACE: action-level credit within a cluster of comparable steps (BiPACE, section 3.5).

In a cluster C, C=(i) are the steps with the same action as step i, C≠(i) the others.

    difference   Aᵢ = Rᵢ − mean_{C≠(i)} R                   (4)    leave-one-out if C≠(i) is empty
    Q form       Aᵢ = mean_{C=(i)} R − mean_C R = Q̂ − V̂     (5–7)  leave-one-out if C=(i) = {i}

Leave-one-out: Rᵢ − mean_{C∖i} R. A cluster of one gives 0.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.method import CreditTerm, Explained
from tacit.core.protocols import Encoder
from tacit.core.types import Groups, IterationInfo, Step
from tacit.credit.episode import Std
from tacit.credit.partitions import Partition, SameKey, by_key
from tacit.credit.step_relative import explain_credit, partition_metrics

Form = Literal["q", "difference"]
"""Q-style and diff-peer in the paper's section 3.5"""
ActionKey = Literal["tag", "tokens"]
"""action-tag and first-token in Figure 4 and Table L.1"""
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
class ActionPeers(CreditTerm):
    """w · Aᵢ. With `std`, divided by the standard deviation of the cluster's returns; Eqs. 4–7 do not divide."""

    partition: Partition = field(default_factory=SameKey)
    form: Form = "q"
    key: ActionKey = "tag"
    key_tokens: int = 8
    weight: float = 1.0
    gamma: float = 0.95
    std: Std = None
    delta: float = 1e-6

    @property
    def needs(self) -> frozenset[str]:
        return self.partition.needs

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
