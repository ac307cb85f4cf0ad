"""Which layer, pooling and radius make a good geometry for a model: appendix H's scan and its rule.

The rule: take the layer whose features best tell the task families apart (a linear probe), among those whose clusters are
neither one giant nor all singletons and number at least five; then the radius by the median cluster size (appendix F).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.core.errors import TacitError
from tacit.credit.partitions import by_cosine

EPSILONS = (0.05, 0.10, 0.15, 0.20)
POOLINGS = ("last", "mean", "attention")
MIN_CLUSTERS = 5
DEGENERATE = 0.95
"""one cluster with more than this share of the steps is a giant; more than this share standing alone is all singletons"""


@dataclass(frozen=True)
class Slice:
    """One point of the scan."""

    layer: int
    """counted from the end: −1 is the last"""
    pooling: str
    epsilon: float
    probe: float
    """held-out accuracy of the linear probe; the same for every epsilon"""
    clusters: int
    singletons: float
    """share of clusters with one member"""
    singleton_steps: float
    largest: float
    """share of steps in the largest cluster"""

    def refusal(self, min_clusters: int = MIN_CLUSTERS) -> str:
        """Why this geometry cannot be used, or nothing."""
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
    features_ND: np.ndarray, label_N: np.ndarray, episode_N: np.ndarray, folds: int = 5, ridge: float = 1e-2
) -> float:
    """Held-out accuracy of a ridge classifier (one-hot targets, argmax) on unit features.

    W = Xᵀ (X Xᵀ + λ I)⁻¹ Y with λ = ridge · mean diagonal of X Xᵀ. Folds are cut by episode: the steps of one episode
    resemble each other, and must not be on both sides.
    """
    x_ND = np.asarray(features_ND, np.float64)
    x_ND = x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)
    y_NC = np.eye(int(label_N.max()) + 1)[label_N]
    fold_N = np.unique(episode_N, return_inverse=True)[1] % folds
    right = 0
    for fold in np.unique(fold_N):
        held = fold_N == fold
        if held.all():
            raise TacitError("a linear probe needs steps of at least two episodes, one to learn from and one to be tested on.")
        mean_D, mean_C = x_ND[~held].mean(axis=0), y_NC[~held].mean(axis=0)
        seen, unseen = x_ND[~held] - mean_D, x_ND[held] - mean_D
        gram = seen @ seen.T
        damping = ridge * max(np.trace(gram) / len(gram), 1e-12)
        dual = np.linalg.solve(gram + damping * np.eye(len(gram)), y_NC[~held] - mean_C)
        right += int((np.argmax(unseen @ (seen.T @ dual) + mean_C, axis=1) == label_N[held]).sum())
    return right / len(label_N)


def scan(
    features: Mapping[tuple[int, str], np.ndarray],
    label_N: np.ndarray,
    episode_N: np.ndarray,
    epsilons: Sequence[float] = EPSILONS,
) -> list[Slice]:
    """Every (layer, pooling) of `features` at every radius, clustered over the whole audit set."""
    slices = []
    for (layer, pooling), features_ND in features.items():
        probe = probe_accuracy(features_ND, label_N, episode_N)
        for epsilon in epsilons:
            sizes = np.bincount(by_cosine(features_ND, epsilon))
            alone = int((sizes == 1).sum())
            n = len(label_N)
            slices.append(
                Slice(layer, pooling, epsilon, probe, len(sizes), alone / len(sizes), alone / n, int(sizes.max()) / n)
            )
    return slices


def choose(slices: Sequence[Slice], min_clusters: int = MIN_CLUSTERS) -> Slice:
    """The best probe among geometries that can be used. Of equals one of the last token, whose state the sampler has anyway;
    then the one with the fewest steps alone, then the deepest."""
    usable = [s for s in slices if not s.refusal(min_clusters)]
    if not usable:
        reasons = sorted({s.refusal(min_clusters) for s in slices})
        raise TacitError(
            f"none of {len(slices)} layer, pooling and radius combinations can be used ({', '.join(reasons)}). Scan other "
            "radii (--epsilons) or layers (--layers), or lower --min-clusters where the world has few kinds of states."
        )
    return max(usable, key=lambda s: (s.probe, s.pooling == "last", -s.singleton_steps, s.layer))
