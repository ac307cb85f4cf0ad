"""PACE: credit for the action, not for the luck of its state (BiPACE, section 3.5).

Within a cluster C of comparable steps, let C=(i) be the steps that took the same action as step i and C≠(i) the others.

    difference   Aᵢ = Rᵢ − mean_{C≠(i)} R                   (4)   where all took the same action: leave-one-out
    Q form       Aᵢ = mean_{C=(i)} R − mean_C R = Q̂ − V̂     (5–7) where nobody else took it: leave-one-out

Leave-one-out is Rᵢ − mean_{C∖i} R within the cluster. A cluster of one member gives 0.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.errors import TacitError
from tacit.core.method import CreditTerm, Explained
from tacit.core.protocols import Encoder
from tacit.core.types import Group, IterationInfo, Step
from tacit.credit.episode import Std
from tacit.credit.partitions import Partition, SameKey, by_key
from tacit.credit.step_relative import explain_credit, pace_metrics, partition_metrics

Form = Literal["q", "difference", "q-style", "diff-peer"]
ActionKey = Literal["tag", "tokens", "action-tag", "first-token"]
PAPER_NAMES = {"q-style": "q", "diff-peer": "difference", "action-tag": "tag", "first-token": "tokens"}
"""what section 3.5, Figure 4 and Table L.1 call them"""
ZERO, LEAVE_ONE_OUT, PACE = 0, 1, 2
"""which branch gave a step its credit"""
BRANCHES = ("zero", "leave one out", "PACE")
"""their names"""


def action_peers(
    returns_N: np.ndarray, cluster_N: np.ndarray, key_N: np.ndarray, form: Form = "q"
) -> tuple[np.ndarray, np.ndarray]:
    """(advantages, branch of each step). `key_N` labels actions; labels count from 0."""
    if not len(returns_N):
        return np.zeros(0), np.zeros(0, np.int64)
    pair_N = cluster_N * (key_N.max() + 1) + key_N
    _, pair_N = np.unique(pair_N, return_inverse=True)
    size_N, total_N = _pooled(returns_N, cluster_N)
    same_N, same_total_N = _pooled(returns_N, pair_N)
    alone_N = size_N == 1
    others_N = np.where(alone_N, 1, size_N - 1)
    leave_one_out_N = returns_N - (total_N - returns_N) / others_N
    if PAPER_NAMES.get(form, form) == "q":
        pace_N = same_total_N / same_N - total_N / size_N
        peers_N = same_N > 1
    else:
        different_N = size_N - same_N
        pace_N = returns_N - (total_N - same_total_N) / np.maximum(different_N, 1)
        peers_N = different_N > 0
    branch_N = np.where(alone_N, ZERO, np.where(peers_N, PACE, LEAVE_ONE_OUT))
    return np.choose(branch_N, [np.zeros(len(returns_N)), leave_one_out_N, pace_N]), branch_N


def action_values(returns_N: np.ndarray, cluster_N: np.ndarray, key_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Q̂, V̂) of each step: the mean return of its action in its cluster, and of its cluster (Eqs. 6 and 7)."""
    if not len(returns_N):
        return np.zeros(0), np.zeros(0)
    _, pair_N = np.unique(cluster_N * (key_N.max() + 1) + key_N, return_inverse=True)
    (same_N, same_total_N), (size_N, total_N) = _pooled(returns_N, pair_N), _pooled(returns_N, cluster_N)
    return same_total_N / same_N, total_N / size_N


def action_keys(steps: Sequence[Step], key: ActionKey = "tag", tokens: int = 8) -> np.ndarray:
    """[N] labels of what each step did: its parsed action, or its first completion tokens (also where nothing parsed)."""
    if PAPER_NAMES.get(key, key) == "tag":
        return by_key([step.action if step.valid else _first(step, tokens) for step in steps])
    return by_key([_first(step, tokens) for step in steps])


@dataclass(frozen=True)
class ActionPeers(CreditTerm):
    """w · PACE's advantage of each step. `std` divides it by the cluster's deviation; Eqs. 4–7 do not. Form and key may also
    be given by the paper's names."""

    partition: Partition = field(default_factory=SameKey)
    form: Form = "q"
    key: ActionKey = "tag"
    key_tokens: int = 8
    weight: float = 1.0
    gamma: float = 0.95
    std: Std = None
    delta: float = 1e-6

    def __post_init__(self) -> None:
        if self.key_tokens < 1:
            raise TacitError(f"key_tokens = {self.key_tokens} tells no action from another; it must be at least 1.")
        for name in ("form", "key"):  # one name for one thing: terms that do the same are equal
            object.__setattr__(self, name, PAPER_NAMES.get(getattr(self, name), getattr(self, name)))

    @property
    def needs(self) -> frozenset[str]:
        return self.partition.needs

    def __call__(
        self,
        groups: Sequence[Group],
        rewards: Sequence[Rewards],
        policy: Encoder | None = None,
        info: IterationInfo | None = None,
    ) -> Explained:
        began = time.perf_counter()
        clusters = self.partition(groups, policy)
        keys = [action_keys(group.steps, self.key, self.key_tokens) for group in groups]
        steps: list[np.ndarray] = []
        columns: dict[str, list[np.ndarray]] = {"return": [], "q": [], "v": [], "branch": []}
        for reward, cluster_N, key_N in zip(rewards, clusters, keys, strict=True):
            returns_N = reward.returns_N(self.gamma)
            values_N, branch_N = action_peers(returns_N, cluster_N, key_N, self.form)
            steps.append(self.weight * self._divided(values_N, returns_N, cluster_N))
            told = (returns_N, *action_values(returns_N, cluster_N, key_N), branch_N)
            for column, column_N in zip(columns.values(), told, strict=True):
                column.append(column_N)
        parsed = [np.array([step.valid for step in group.steps], bool) for group in groups]
        metrics = {**partition_metrics(clusters), **pace_metrics(clusters, keys, columns["branch"], parsed)}
        metrics["step_credit_seconds"] = time.perf_counter() - began
        return explain_credit(groups, steps, clusters, metrics, columns)

    def _divided(self, values_N: np.ndarray, returns_N: np.ndarray, cluster_N: np.ndarray) -> np.ndarray:
        if self.std is None or not len(values_N):
            return values_N
        size_N, total_N = _pooled(returns_N, cluster_N)
        _, squares_N = _pooled((returns_N - total_N / size_N) ** 2, cluster_N)
        return values_N / (np.sqrt(squares_N / np.maximum(size_N - (self.std == "sample"), 1)) + self.delta)


def _first(step: Step, tokens: int) -> tuple[int, ...]:
    """A tuple, so that no sequence of tokens is ever taken for a parsed action."""
    return tuple(step.completion.tokens[:tokens].tolist())


def _pooled(values_N: np.ndarray, label_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(members, sum) of each step's pool."""
    return np.bincount(label_N)[label_N], np.bincount(label_N, weights=values_N)[label_N]
