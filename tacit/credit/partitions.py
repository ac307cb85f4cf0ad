"""Partitions of a group's steps into clusters whose steps are compared with each other.

A partition of N steps is an integer array cluster_N: labels from 0 in order of first appearance, −1 for no cluster. Steps are
in rollout order: all steps of the first trajectory, then of the second, and so on.

by_key         equal keys (GiGPO)
by_similarity  similar texts (GiGPO's option for worlds whose observations do not repeat exactly)
by_history     equal last k observations (HGPO)
by_cosine      nearby features (BiPACE's Algorithm 1, with any embedder)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.method import MethodPiece
from tacit.core.protocols import Encoder
from tacit.core.types import Group
from tacit.credit.embedders import Key, key_texts

ROUNDING = 1e-6  # error of a single-precision cosine; equal features must be within radius 0


def by_key(keys: Sequence[Hashable]) -> np.ndarray:
    label: dict[Hashable, int] = {}
    return np.array([label.setdefault(key, len(label)) for key in keys], dtype=np.int64)


def by_similarity(texts: Sequence[str], threshold: float = 0.95) -> np.ndarray:
    """Each text joins the first cluster whose *first* member has a difflib ratio of at least `threshold` to it."""
    label: dict[str, int] = {}
    first: list[str] = []
    matcher = SequenceMatcher(autojunk=True)
    for text in texts:
        if text in label:
            continue
        matcher.set_seq2(text)  # difflib caches its analysis of the second sequence
        for k, other in enumerate(first):
            matcher.set_seq1(other)
            # The quick ratios are upper bounds.
            if min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= threshold and matcher.ratio() >= threshold:
                label[text] = k
                break
        else:
            label[text] = len(first)
            first.append(text)
    return np.array([label[text] for text in texts], dtype=np.int64)


def by_history(keys: Sequence[Hashable], trajectory_N: np.ndarray, k: int) -> np.ndarray:
    """Steps with equal last k observations, including the current one. −1 before the k-th observation."""
    if k < 1:
        raise TacitError(f"a history of k = {k} observations cannot be compared; k must be at least 1.")
    now_N = by_key(keys)
    begins_N = np.searchsorted(trajectory_N, trajectory_N)
    rows = np.flatnonzero(np.arange(len(now_N)) - begins_N + 1 >= k)
    cluster_N = np.full(len(now_N), -1, dtype=np.int64)
    cluster_N[rows] = by_key([now_N[i - k + 1 : i + 1].tobytes() for i in rows])
    return cluster_N


def by_cosine(features: np.ndarray | Sequence[np.ndarray], epsilon: float) -> np.ndarray:
    """Algorithm 1: one greedy pass in the given order over unit vectors x = f / ‖f‖.

        k ← argmaxⱼ xᵢ·cⱼ  (the first of equals)
        1 − xᵢ·c_k ≤ ε :  join k,  c_k ← normalize(c_k + (xᵢ − c_k) / |M_k|),  |M_k| including xᵢ
        otherwise      :  start a cluster with c = xᵢ

    Returns [N] labels. c_k is unchanged if x = c_k, or if x and c_k cancel out. To save normalizations, a cluster stores an
    unnormalized u parallel to c: joining is u ← u + f · ‖u‖ / (‖f‖ (|M_k| − 1)); the new ‖u‖ follows from the old one and the
    cosine.
    """
    check_radius(epsilon)
    if not len(features):
        return np.zeros(0, dtype=np.int64)
    rows = [np.asarray(feature, np.float32) for feature in features]
    pointing_ND, added_D = np.empty((len(rows), len(rows[0])), np.float32), np.empty_like(rows[0])
    inverse_N = np.empty(len(rows), np.float32)  # 1 / ‖u‖
    cluster: list[int] = []
    members: list[int] = []
    lengths: list[float] = []  # ‖u‖
    for f_D, length in zip(rows, _lengths(rows), strict=True):
        k, cosine = len(members), -np.inf
        if members:
            cosines_K = pointing_ND[:k].dot(f_D)
            cosines_K *= inverse_N[:k]
            k = int(cosines_K.argmax())
            cosine = cosines_K.item(k) / length
        if 1.0 - cosine <= epsilon + ROUNDING:
            before, u_D = members[k], pointing_ND[k]
            members[k] += 1
            grown = math.sqrt(max(0.0, before * before + 2 * before * cosine + 1))  # |M_k| · ‖c + (x − c) / |M_k|‖
            if cosine < 1.0 and grown > 5e-4 * members[k]:
                np.multiply(f_D, lengths[k] / (length * before), out=added_D)
                u_D += added_D
                lengths[k] *= grown / before
                inverse_N[k] = 1 / lengths[k]
        else:
            k = len(members)
            members.append(1)
            lengths.append(length)
            pointing_ND[k], inverse_N[k] = f_D, 1 / length
        cluster.append(k)
    return np.array(cluster, dtype=np.int64)


def check_radius(epsilon: float) -> None:
    if not 0.0 <= epsilon <= 2.0:
        raise TacitError(
            f"epsilon = {epsilon} is not a cosine distance: it must be between 0 (same direction) and 2 (opposite)."
        )


def _lengths(rows: Sequence[np.ndarray]) -> list[float]:
    squares = [float(row.dot(row)) for row in rows]
    wrong = [n for n, square in enumerate(squares) if not 0.0 < square < math.inf]
    if wrong:
        reason = "is all zeros and has no direction" if squares[wrong[0]] <= 0.0 else "holds NaN or infinite numbers"
        raise TacitError(
            f"the feature of step {wrong[0]} of a group {reason} ({len(wrong)} such steps), so steps cannot be clustered. "
            "Choose another layer or embedder; if the policy has diverged, resume from an earlier checkpoint."
        )
    return [math.sqrt(square) for square in squares]


class Partition(MethodPiece, ABC):
    @abstractmethod
    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> list[np.ndarray]:
        """cluster_N of each group, one label per step."""


@dataclass(frozen=True)
class SameKey(Partition):
    """Steps with equal key texts: by default the same observation."""

    key: Key = "observation"

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        return [by_key(key_texts(group.steps, self.key)) for group in groups]


@dataclass(frozen=True)
class SimilarObservation(Partition):
    threshold: float = 0.95

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        return [by_similarity([step.observation.text for step in group.steps], self.threshold) for group in groups]
