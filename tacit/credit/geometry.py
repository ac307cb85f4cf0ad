"""Which layer, pooling and radius steps are compared with: what was said, else what was calibrated, else what was published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.resources import Base
from tacit.credit.embedders import Features, Pooling
from tacit.credit.partitions import by_cosine

PUBLISHED_LAYER, PUBLISHED_DEPTH = -8, 28
"""the layer, and how many the backbones have that it was chosen for"""
PUBLISHED_EPSILON = {"actor": 0.10, "ngram": 0.25, "identity": 0.0, "sentence": 0.10}
"""by embedder; the paper has no sentence encoder, so its radius is ours"""


@dataclass(frozen=True)
class Geometry:
    """None is what has not been decided yet."""

    layer: int | None = None
    pooling: Pooling | None = None
    epsilon: float | None = None


def choose_geometry(told: Geometry, embedder: str, base: Base, adaptive: bool) -> tuple[Geometry, tuple[str, ...]]:
    """The geometry a run uses, and notes on what was decided for the user. A calibrated radius belongs to its layer and pooling
    and is not used with others; an adaptive one is left open, to be found on the first iteration."""
    if base.calibrated is None:
        return told, ()
    found = base.calibrated.get(embedder)
    chosen, notes = told, []
    if found is not None and told.layer in (None, found.get("layer")) and told.pooling in (None, found.get("pooling")):
        names = [n for n in ("layer", "pooling", "epsilon") if found.get(n) is not None and getattr(told, n) is None]
        taken = {name: found[name] for name in names if not (adaptive and name == "epsilon")}
        chosen = replace(told, **taken)
        if taken:
            shown = ", ".join(f"{name} = {value}" for name, value in taken.items())
            notes.append(f"{shown}, as `tacit calibrate` found for {base.model} in this world and context")
    if embedder == "actor":
        if chosen.layer is None:
            layer, note = _published_layer(base)
            chosen, notes = replace(chosen, layer=layer), notes + ([note] if note else [])
        _check_layer(base, chosen.layer)
        chosen = replace(chosen, pooling=chosen.pooling or "last")
    if chosen.epsilon is None and not adaptive:
        chosen = replace(chosen, epsilon=PUBLISHED_EPSILON[embedder])
    return chosen, tuple(notes)


def _published_layer(base: Base) -> tuple[int, str]:
    """The published layer; in a model too shallow for it, the one at the same relative depth, short of the last."""
    if base.layers is None or base.layers > -PUBLISHED_LAYER:
        return PUBLISHED_LAYER, ""
    layer = -min(max(2, round(-PUBLISHED_LAYER * base.layers / PUBLISHED_DEPTH)), base.layers)
    had = f"{base.model} has {base.layers} layers, so layer = {layer} instead of {PUBLISHED_LAYER}"
    return layer, f"{had}; `tacit calibrate` knows better"


def _check_layer(base: Base, layer: int | None) -> None:
    if layer is not None and base.layers is not None and not -base.layers - 1 <= layer <= base.layers:
        raise TacitError(
            f"layer = {layer} does not exist in {base.model!r}, which has {base.layers}: give -1 (the last) to "
            f"{-base.layers - 1} (the embeddings), or let `tacit calibrate` choose."
        )


# How far two steps may be apart and still be compared: appendix F's search.
#
# A radius is good where the median cluster has 4 to 8 members: small enough that members share a value (the bias of a cluster's
# mean is at most 2Lε), large enough that few steps stand alone and get no step-level credit.

LOW, HIGH, TARGET, PROBES = 0.02, 0.40, (4.0, 8.0), 6
LEAST = LOW / 1024
"""so far down goes the search where all of the published range is too wide: a model's states may nearly all point one way"""


def median_cluster_size(clusters: Sequence[np.ndarray]) -> float:
    """The median number of members over all clusters of all groups."""
    sizes = np.concatenate([np.bincount(cluster_N[cluster_N >= 0]) for cluster_N in clusters]) if clusters else np.zeros(0)
    return float(np.median(sizes)) if len(sizes) else 0.0


def search_radius(features: Sequence[Features]) -> tuple[float, float]:
    """(ε, median cluster size): bisect the published range until the median is within the target, and where the nearest is
    still too wide what lies below, by powers.

    After so many probes the one that came nearest is taken (the earliest of equals), so a geometry without a good radius
    still gets the least bad one.
    """
    found = _bisect(features, LOW, HIGH, lambda low, high: (low + high) / 2)
    if found[2] > TARGET[1]:
        below = _bisect(features, LEAST, LOW, lambda low, high: float(np.sqrt(low * high)))
        found = min(found, below, key=lambda probe: probe[0])
    return found[1:]


def _bisect(
    features: Sequence[Features], low: float, high: float, between: Callable[[float, float], float]
) -> tuple[float, float, float]:
    """(by how many members the nearest probe missed the target, that probe, its median)"""
    best = (np.inf, 0.0, 0.0)
    for _ in range(PROBES):
        epsilon = between(low, high)
        median = median_cluster_size([by_cosine(rows, epsilon) for rows in features])
        missed = max(TARGET[0] - median, median - TARGET[1], 0.0)
        if missed < best[0]:
            best = (missed, epsilon, median)
        if missed == 0.0:
            break
        low, high = (epsilon, high) if median < TARGET[0] else (low, epsilon)
    return best
