"""Which steps of a group are compared with one another: partitions, as labels.

A partition of N steps is an integer array part_N. Labels count from 0 in order of first appearance, steps run rollout-major
(all steps of the first member, then the second's), and −1 marks a step that is in no part.

by_key         equal keys: GiGPO's exact observation
by_similarity  texts alike: GiGPO's option for worlds whose observations never repeat exactly
by_history     equal last k observations: HGPO
by_cosine      nearby features: BiPACE's Algorithm 1, over any embedder
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Protocol

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.protocols import Encoder
from tacit.core.types import Group
from tacit.credit.embedders import Embedder

BLOCK = 32
"""rows clustered against one matrix product; any number gives the same parts, this one is quick"""


def by_key(keys: Sequence[Hashable]) -> np.ndarray:
    """Equal keys share a part."""
    label: dict[Hashable, int] = {}
    return np.array([label.setdefault(key, len(label)) for key in keys], dtype=np.int64)


def by_similarity(texts: Sequence[str], threshold: float = 0.95) -> np.ndarray:
    """Each text joins the first part whose *first* member it resembles: difflib's ratio at least `threshold`."""
    label: dict[str, int] = {}
    first: list[str] = []
    matcher = SequenceMatcher(autojunk=True)
    for text in texts:
        if text in label:  # parts only ever come later, so the same text ends where it ended before
            continue
        matcher.set_seq2(text)  # the side difflib prepares; the parts' first members take turns on the other
        for k, other in enumerate(first):
            matcher.set_seq1(other)
            # The quick ratios are upper bounds, so what they rule out needs no alignment.
            if min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= threshold and matcher.ratio() >= threshold:
                label[text] = k
                break
        else:
            label[text] = len(first)
            first.append(text)
    return np.array([label[text] for text in texts], dtype=np.int64)


def by_history(keys: Sequence[Hashable], trajectory_N: np.ndarray, k: int) -> np.ndarray:
    """Steps whose last k observations, the present one included, are equal. −1 where fewer than k have been seen."""
    if k < 1:
        raise TacitError(f"a history of k = {k} observations cannot be compared; k must be at least 1.")
    now_N = by_key(keys)
    begins_N = np.searchsorted(trajectory_N, trajectory_N)
    known_N = np.arange(len(now_N)) - begins_N + 1 >= k
    rows = np.flatnonzero(known_N)
    part_N = np.full(len(now_N), -1, dtype=np.int64)
    part_N[rows] = by_key([now_N[i - k + 1 : i + 1].tobytes() for i in rows])
    return part_N


def by_cosine(features: np.ndarray | Sequence[np.ndarray], epsilon: float) -> np.ndarray:
    """Algorithm 1: one greedy pass in the given order over unit vectors x = f / ‖f‖.

        k ← argmaxⱼ xᵢ·cⱼ  (the first of equals)
        1 − xᵢ·c_k ≤ ε :  join k,  c_k ← normalize(c_k + (xᵢ − c_k) / |M_k|)  with |M_k| counting xᵢ
        otherwise      :  xᵢ begins a part of its own, with c = xᵢ

    Rows are taken in blocks. Within one, every xᵢ·cⱼ comes from a matrix product, and a joining row moves its centroid by the
    same linear step in three places at once: its products with the rest of the block, and its coefficients over (the
    centroid before the block, the rows of the block), from which the centroids are rebuilt when the block is done.
    """
    check_radius(epsilon)
    n = len(features)
    if n == 0:
        return np.zeros(0, dtype=np.int64)
    width = len(features[0])
    part: list[int] = []
    members: list[int] = []
    vectors_VD = np.empty((4 * BLOCK, width), np.float32)  # the centroids, and behind them the rows of the block
    for start in range(0, n, BLOCK):
        size, known = min(BLOCK, n - start), len(members)
        if known + size > len(vectors_VD):
            vectors_VD = np.concatenate([vectors_VD, np.empty_like(vectors_VD)])
        x_BD = vectors_VD[known : known + size]
        np.stack(list(features[start : start + size]), out=x_BD, casting="same_kind")
        products_VB = vectors_VD[: known + size] @ x_BD.T
        scale_B = 1.0 / _lengths(products_VB[known:].diagonal(), start)

        # Columns: products with the block's rows | coefficients over them | coefficient of the centroid as it was.
        row_BC = np.zeros((size, 2 * size + 1), np.float32)
        row_BC[:, :size] = products_VB[known:] * scale_B * scale_B[:, None]
        row_BC[np.arange(size), size + np.arange(size)] = scale_B
        centroid_KC = np.zeros((known + size, 2 * size + 1), np.float32)
        centroid_KC[:known, :size] = products_VB[:known] * scale_B
        centroid_KC[:known, -1] = 1.0

        for i in range(size):
            if members:
                cosines_K = centroid_KC[: len(members), i]
                k = int(cosines_K.argmax())
                cosine = cosines_K.item(k)
                if 1.0 - cosine <= epsilon:
                    before, members[k] = members[k], members[k] + 1
                    part.append(k)
                    length = max(before * before + 2.0 * before * cosine + 1.0, 0.0) ** 0.5  # of n c + x
                    # Where x is c, c stays as it is to the last bit; where opposites cancel out, no direction is left.
                    if cosine < 1.0 and length > 1e-3:
                        centroid_C = centroid_KC[k]
                        centroid_C *= before / length
                        centroid_C += row_BC[i] * (1.0 / length)
                    continue
            centroid_KC[len(members)] = row_BC[i]
            part.append(len(members))
            members.append(1)
        _rebuild(vectors_VD, centroid_KC[: len(members)], known, x_BD)
    return np.array(part, dtype=np.int64)


def check_radius(epsilon: float) -> None:
    if not 0.0 <= epsilon <= 2.0:
        raise TacitError(f"epsilon = {epsilon} is no cosine distance: it must be between 0 (same direction) and 2 (opposite).")


def _lengths(squares_B: np.ndarray, start: int) -> np.ndarray:
    """Row lengths from the diagonal of the products; what is not finite in a row is not finite here."""
    wrong = np.flatnonzero(~np.isfinite(squares_B) | (squares_B <= 0.0))
    if len(wrong):
        value = squares_B[wrong[0]]
        reason = "is all zeros and has no direction" if value <= 0.0 else "holds NaN or infinite numbers"
        raise TacitError(
            f"the feature of step {start + wrong[0]} of a group {reason} ({len(wrong)} such in its block), so steps cannot be "
            "clustered. Choose another layer or embedder; if the policy has diverged, go back to an earlier checkpoint."
        )
    return np.sqrt(squares_B)


def _rebuild(vectors_VD: np.ndarray, centroid_KC: np.ndarray, known: int, x_BD: np.ndarray) -> None:
    """Centroids after a block, from their coefficients; those that no row joined stay as they are."""
    size = len(x_BD)
    moved = np.flatnonzero(centroid_KC[:, size:-1].any(axis=1))
    fresh_MD = centroid_KC[moved, size:-1] @ x_BD
    older = int(np.searchsorted(moved, known))  # those that were there before the block come first
    fresh_MD[:older] += centroid_KC[moved[:older], -1:] * vectors_VD[moved[:older]]
    fresh_MD *= (1.0 / np.sqrt(np.einsum("md,md->m", fresh_MD, fresh_MD)))[:, None]
    vectors_VD[moved] = fresh_MD


class Partition(Protocol):
    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> list[np.ndarray]:
        """part_N of each group."""
        ...


@dataclass(frozen=True)
class SameObservation:
    """Steps that saw exactly the same text (never history, never the list of actions)."""

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        return [by_key([step.observation.text for step in group.steps]) for group in groups]


@dataclass(frozen=True)
class SimilarObservation:
    """Steps that saw nearly the same text."""

    threshold: float = 0.95

    def __post_init__(self) -> None:
        if not 0.0 < self.threshold <= 1.0:
            raise TacitError(f"similarity = {self.threshold} must be above 0 and at most 1, where texts must be equal.")

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        return [by_similarity([step.observation.text for step in group.steps], self.threshold) for group in groups]


class Radius(Protocol):
    """A cosine radius that may be found later than it is asked for."""

    @property
    def value(self) -> float: ...


@dataclass(frozen=True)
class Fixed:
    """A radius known from the start."""

    value: float

    def __post_init__(self) -> None:
        check_radius(self.value)


@dataclass(frozen=True)
class Clusters:
    """Steps whose features point the same way, up to the radius (Eq. 3)."""

    embedder: Embedder
    radius: Radius = field(default_factory=lambda: Fixed(0.10))

    @property
    def needs(self) -> frozenset[str]:
        return getattr(self.embedder, "needs", frozenset())

    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> list[np.ndarray]:
        radius = self.radius.value
        return [by_cosine(features, radius) for features in self.embedder(groups, policy)]
