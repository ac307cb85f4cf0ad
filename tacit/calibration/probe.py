"""Choice of layer and pooling: appendix H's scan and rule.

The rule takes the layer whose features best separate the task families (linear probe), among those with at least five clusters,
not nearly all steps in one cluster and not nearly all singletons. The probe is tested on held-out tasks, because steps of one
task are similar in every layer. Ties within one standard error go to the last token and to a late layer before the final one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from tacit.core.errors import TacitError
from tacit.credit.partitions import Pooling, by_cosine, late_layer

EPSILONS = (0.05, 0.10, 0.15, 0.20)
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
MIN_CLUSTERS = 5
DEGENERATE = 0.95  # unusable: a larger share of steps in one cluster, or in singletons


@dataclass(frozen=True)
class Slice:
    """One layer, pooling and radius of the scan, with its measurements."""

    layer: int  # from the end: −1 is the last
    pooling: Pooling
    epsilon: float
    probe: float  # held-out accuracy of the probe; the same for every epsilon
    clusters: int
    singletons: float  # share of clusters with one member
    singleton_steps: float  # share of steps in such clusters
    largest: float  # share of steps in the largest cluster
    probe_error: float = 0.0  # standard error of the accuracy over tasks

    def refusal(self, min_clusters: int = MIN_CLUSTERS) -> str:
        """Why this geometry is unusable; empty if it is usable."""
        if self.largest > DEGENERATE:
            return "one giant cluster"
        if self.singleton_steps > DEGENERATE:
            return "all singletons"
        return f"fewer than {min_clusters} clusters" if self.clusters < min_clusters else ""


def layers_to_scan(layers: int) -> list[int]:
    """The paper's grid {4, 8, …, 24, 27} of 28 layers for any depth, counted from the end; every layer of a shallow model.

    >>> layers_to_scan(28)
    [-24, -20, -16, -12, -8, -4, -1]
    """
    blocks = range(layers) if layers <= 8 else [*range(4, layers - 1, 4), layers - 1]
    return [block - layers for block in blocks]


def probe_accuracy(
    features_ND: np.ndarray, label_N: np.ndarray, task_N: np.ndarray, folds: int = 5, ridge: float = 1e-2
) -> tuple[float, float]:
    """(accuracy, standard error over tasks) of a ridge classifier (one-hot targets, argmax) on unseen tasks.

    W = (XᵀX + λ I)⁻¹ Xᵀ Y on centered unit features, λ = ridge · mean squared length. Folds are whole tasks, dealt out label by
    label, so that every fold leaves tasks of every label for training; labels with one task are dropped. Accuracy is the mean
    over tasks of their share of correct steps. A single label gives (1, 0).
    """
    # [N] whether a step's label has at least two tasks.
    tasks_of = {label: len(np.unique(task_N[label_N == label])) for label in np.unique(label_N)}
    usable_N = np.array([tasks_of[label] >= 2 for label in label_N], bool)
    if len(np.unique(label_N)) < 2:
        return 1.0, 0.0
    if len(np.unique(label_N[usable_N])) < 2:
        raise TacitError(
            "the linear probe needs two families with two tasks each, one to train on and one to test on. Play more tasks "
            "(--tasks-each), or use more of the recorded ones (--observations)."
        )
    x_ND = np.asarray(features_ND, np.float64)[usable_N]
    x_ND = x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)
    label_N = np.unique(label_N[usable_N], return_inverse=True)[1]
    task_N = np.unique(task_N[usable_N], return_inverse=True)[1]
    y_NC = np.eye(int(label_N.max()) + 1)[label_N]
    # [N] fold of each step: a label's tasks are dealt out in turn.
    label_K = np.zeros(task_N.max() + 1, np.int64)
    label_K[task_N] = label_N
    turn_K = np.array([(label_K[:task] == label_K[task]).sum() for task in range(len(label_K))])
    fold_N = (turn_K % folds)[task_N]
    right_N = np.zeros(len(label_N))
    for fold in np.unique(fold_N):
        held = fold_N == fold
        mean_D, mean_C = x_ND[~held].mean(axis=0), y_NC[~held].mean(axis=0)
        weights_DC = solve_ridge(x_ND[~held] - mean_D, y_NC[~held] - mean_C, ridge)
        right_N[held] = np.argmax((x_ND[held] - mean_D) @ weights_DC + mean_C, axis=1) == label_N[held]
    share_K = np.bincount(task_N, weights=right_N) / np.bincount(task_N)
    return float(share_K.mean()), float(share_K.std(ddof=1) / len(share_K) ** 0.5)


def scan(
    features: Mapping[tuple[int, Pooling], np.ndarray],
    label_N: np.ndarray,
    task_N: np.ndarray,
    epsilons: Sequence[float] = EPSILONS,
) -> list[Slice]:
    """Every (layer, pooling) at every radius, clustered over the audit set."""
    slices = []
    for (layer, pooling), features_ND in features.items():
        probe, error = probe_accuracy(features_ND, label_N, task_N)
        for epsilon in epsilons:
            sizes = np.bincount(by_cosine(features_ND, epsilon))
            alone, n = int((sizes == 1).sum()), len(label_N)
            shares = (alone / len(sizes), alone / n, int(sizes.max()) / n)
            slices.append(Slice(layer, pooling, epsilon, probe, len(sizes), *shares, error))
    return slices


def choose(slices: Sequence[Slice], layers: int, min_clusters: int = MIN_CLUSTERS) -> Slice:
    """The slice with the best probe among the usable ones, for a model with `layers` layers.

    Geometries within a standard error are equal; prefer the last token (the sampler returns its state anyway), then a layer
    before the final one nearest to the published depth, then fewer singletons.
    """
    usable = [s for s in slices if not s.refusal(min_clusters)]
    if not usable:
        reasons = sorted({s.refusal(min_clusters) for s in slices})
        raise TacitError(
            f"none of {len(slices)} combinations of layer, pooling and radius is usable ({', '.join(reasons)}). Scan other "
            "radii (--epsilons) or layers (--layers), or lower --min-clusters if the world has few kinds of states."
        )
    best = max(usable, key=lambda s: s.probe)
    equals = [s for s in usable if s.probe >= best.probe - best.probe_error]
    late = late_layer(layers)
    return max(equals, key=lambda s: (s.pooling == "last", s.layer != -1, -abs(s.layer - late), s.layer, -s.singleton_steps))


def solve_ridge(x_ND: np.ndarray, y_NC: np.ndarray, ridge: float) -> np.ndarray:
    """[D, C] minimizer of ‖XW − Y‖² + λ‖W‖², solved in the smaller of steps and dimensions."""
    n, d = x_ND.shape
    damping = ridge * max(float((x_ND * x_ND).sum()) / n, 1e-12)
    if d <= n:
        return np.linalg.solve(x_ND.T @ x_ND + damping * np.eye(d), x_ND.T @ y_NC)
    return x_ND.T @ np.linalg.solve(x_ND @ x_ND.T + damping * np.eye(n), y_NC)
