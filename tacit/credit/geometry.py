"""Layer, pooling and radius for clustering hidden states: the user's, else calibrated, else published values; radius search."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.files import read_json
from tacit.core.method import Base, Companion
from tacit.core.protocols import Encoder
from tacit.core.types import Group, IterationInfo
from tacit.credit.partitions import Embedder, Features, Partition, Pooling, by_cosine

PUBLISHED_LAYER, PUBLISHED_DEPTH = -8, 28  # the published layer, and the depth of the paper's models
PUBLISHED_EPSILON = {"actor": 0.10, "ngram": 0.25, "identity": 0.0, "sentence": 0.10}
"""by embedder; the radius for sentence encoders is ours, the paper has none"""


@dataclass(frozen=True)
class Geometry:
    """Layer, pooling and radius of a clustering; None: not chosen yet."""

    layer: int | None = None
    pooling: Pooling | None = None
    epsilon: float | None = None


def late_layer(layers: int) -> int:
    """The published depth scaled to any number of layers, before the final one.

    >>> late_layer(28), late_layer(4)
    (-8, -2)
    """
    return -min(max(2, round(-PUBLISHED_LAYER * layers / PUBLISHED_DEPTH)), layers)


def choose_geometry(chosen: Geometry, embedder: str, base: Base, adaptive: bool) -> tuple[Geometry, tuple[str, ...]]:
    """(geometry with missing values filled in, notes on them).

    A calibrated radius is used only with the layer and pooling it was calibrated for. With `adaptive`, epsilon stays None.
    In a model with at most 8 layers, the layer is the one at the published relative depth, before the last.
    """
    if base.calibrated is None:
        return chosen, ()
    saved = base.calibrated.get(embedder)
    notes = []
    if saved is not None and chosen.layer in (None, saved.get("layer")) and chosen.pooling in (None, saved.get("pooling")):
        names = [n for n in ("layer", "pooling", "epsilon") if saved.get(n) is not None and getattr(chosen, n) is None]
        calibrated = {name: saved[name] for name in names if not (adaptive and name == "epsilon")}
        chosen = replace(chosen, **calibrated)
        if calibrated:
            summary = ", ".join(f"{name} = {value}" for name, value in calibrated.items())
            notes.append(f"{summary}, as `tacit calibrate` found for {base.model} in this world and context")
    if embedder == "actor":
        layers, layer = base.layers, chosen.layer
        if layer is None:
            layer = PUBLISHED_LAYER
            if layers is not None and layers <= -PUBLISHED_LAYER:
                layer = late_layer(layers)
                notes.append(
                    f"{base.model} has {layers} layers, so layer = {layer} instead of {PUBLISHED_LAYER}; "
                    "`tacit calibrate` finds a better one"
                )
        if layers is not None and not -layers - 1 <= layer <= layers:
            raise TacitError(
                f"layer = {layer} does not exist in {base.model!r}, which has {layers}: give -1 (the last) to "
                f"{-layers - 1} (the embeddings), or let `tacit calibrate` choose."
            )
        chosen = replace(chosen, layer=layer, pooling=chosen.pooling or "last")
    if chosen.epsilon is None and not adaptive:
        chosen = replace(chosen, epsilon=PUBLISHED_EPSILON[embedder])
    return chosen, tuple(notes)


# Radius search (appendix F): the median cluster should have 4 to 8 members. Members of larger clusters differ in value (the
# bias of a cluster mean is at most 2Lε); with smaller clusters, too many steps are singletons without step-level credit.

LOW, HIGH, TARGET, PROBES = 0.02, 0.40, (4.0, 8.0), 6
LEAST = LOW / 1024  # lower end of the second search, for models whose hidden states are nearly parallel


def median_cluster_size(clusters: Sequence[np.ndarray]) -> float:
    """Median number of members over all clusters of all groups; 0 if there are none."""
    sizes = np.concatenate([np.bincount(cluster_N[cluster_N >= 0]) for cluster_N in clusters]) if clusters else np.zeros(0)
    return float(np.median(sizes)) if len(sizes) else 0.0


def search_radius(features: Sequence[Features]) -> tuple[float, float]:
    """(ε, median cluster size). Bisects the published range until the median is within the target. If clusters are still too
    large, bisects the range below geometrically. If no probe reaches the target, returns the first of the nearest."""
    best = _bisect(features, LOW, HIGH, lambda low, high: (low + high) / 2)
    if best[2] > TARGET[1]:
        below = _bisect(features, LEAST, LOW, lambda low, high: float(np.sqrt(low * high)))
        best = min(best, below, key=lambda probe: probe[0])
    return best[1:]


def _bisect(
    features: Sequence[Features], low: float, high: float, midpoint: Callable[[float, float], float]
) -> tuple[float, float, float]:
    """(distance of the best probe from the target, its ε, its median)"""
    best = (np.inf, 0.0, 0.0)
    for _ in range(PROBES):
        epsilon = midpoint(low, high)
        median = median_cluster_size([by_cosine(rows, epsilon) for rows in features])
        missed = max(TARGET[0] - median, median - TARGET[1], 0.0)
        if missed < best[0]:
            best = (missed, epsilon, median)
        if missed == 0.0:
            break
        low, high = (epsilon, high) if median < TARGET[0] else (low, epsilon)
    return best


FILE = "radius.json"


class AdaptiveRadius(Companion):
    """Chooses ε on the run's first groups, before their credit, and keeps it; saved with checkpoints."""

    name = "radius"
    read_in_rollouts: ClassVar[bool] = False

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self._value: float | None = None

    @property
    def value(self) -> float:
        if self._value is None:
            raise TacitError("the adaptive radius is not set yet; call `observe` with groups first.")
        return self._value

    def observe(self, groups: Sequence[Group], policy: Encoder, info: IterationInfo | None = None) -> dict[str, float]:
        if self._value is None:
            features = self.embedder([group for group in groups if group.steps], policy)
            if not features:  # every episode crashed; retry in the next iteration
                return {}
            self._value, median = search_radius(features)
            return {"radius": self._value, "radius_median_size": median}
        return {"radius": self._value}

    def save(self, directory: Path) -> None:
        (directory / FILE).write_text(json.dumps({"value": self._value}), encoding="utf-8")

    def load(self, directory: Path) -> None:
        self._value = read_json(directory / FILE)["value"]


@dataclass(frozen=True)
class Clusters(Partition):
    """Steps whose features are within a cosine radius (Eq. 3)."""

    embedder: Embedder
    radius: float | AdaptiveRadius = 0.10

    @property
    def needs(self) -> frozenset[str]:
        return self.embedder.needs

    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> list[np.ndarray]:
        epsilon = self.radius if isinstance(self.radius, int | float) else self.radius.value
        return [by_cosine(features, epsilon) for features in self.embedder(groups, policy)]
