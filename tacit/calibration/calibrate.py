"""Calibration: layer and pooling by a probe (appendix H), radius by the policy's first iteration (appendix F).

They use different episodes. The probe measures which layer separates task families: it needs all families and held-out tasks,
played by any agent. The radius must suit the groups that training compares: it needs groups of that size, played by this
policy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.calibration.audit import Audit
from tacit.calibration.probe import EPSILONS, MIN_CLUSTERS, Slice, choose, layers_to_scan, scan
from tacit.core.errors import TacitError
from tacit.core.files import read_json
from tacit.core.types import Group
from tacit.credit.partitions import TARGET, ActorHidden, Embedder, HashNgram, by_cosine, search_radius
from tacit.credit.step_relative import partition_metrics
from tacit.runs.alarms import LARGEST_PART


@dataclass(frozen=True)
class FoundRadius:
    """The searched radius of one embedder over an iteration's groups."""

    epsilon: float
    median_cluster: float
    singleton_steps: float  # share of steps in no cluster
    largest_cluster: float  # mean over groups of the largest cluster's share of steps

    @property
    def warning(self) -> str:
        if not TARGET[0] <= self.median_cluster <= TARGET[1]:
            return f"no radius gives a median cluster of {TARGET[0]:g} to {TARGET[1]:g} steps; the nearest was chosen"
        if self.largest_cluster > LARGEST_PART:
            return f"the largest cluster holds {self.largest_cluster:.0%} of a group, so it compares dissimilar steps"
        return ""


@dataclass(frozen=True)
class Calibration:
    chosen: Slice
    slices: Sequence[Slice]
    radii: Mapping[str, FoundRadius]  # by embedder: actor, ngram

    def to_json(self) -> dict[str, Any]:
        """The content of a calibration file. Top-level layer, pooling and epsilon are those of the embedder `actor`."""
        return {
            "layer": self.chosen.layer,
            "pooling": self.chosen.pooling,
            "epsilon": self.radii["actor"].epsilon,
            "median_cluster": self.radii["actor"].median_cluster,
            "probe": self.chosen.probe,
            "probe_error": self.chosen.probe_error,
            "embedders": {
                "actor": {"layer": self.chosen.layer, "pooling": self.chosen.pooling, "epsilon": self.radii["actor"].epsilon},
                **{name: {"epsilon": radius.epsilon} for name, radius in self.radii.items() if name != "actor"},
            },
            "radii": {name: asdict(radius) for name, radius in self.radii.items()},
            "slices": [asdict(s) for s in self.slices],
        }


def scan_layers(
    policy: Any, played: Audit, layers: Sequence[int] = (), poolings: Sequence[str] = (), epsilons: Sequence[float] = ()
) -> list[Slice]:
    """One forward pass over the audit's prompts; every layer and pooling at every radius. Defaults are the paper's."""
    wanted = list(layers) or layers_to_scan(policy.engine.model.layers)
    features = policy.hidden_scan(played.prompts, wanted, list(poolings) or list(policy.poolings))
    return scan(features, played.family_N, played.task_N, tuple(epsilons) or EPSILONS)


def finish(policy: Any, slices: Sequence[Slice], first: Sequence[Group], min_clusters: int = MIN_CLUSTERS) -> Calibration:
    """Choose the layer from the scan, and each embedder's radius on `first`, the groups of the policy's first iteration."""
    chosen = choose(slices, policy.engine.model.layers, min_clusters)
    embedders: dict[str, Embedder] = {"actor": ActorHidden(chosen.layer, chosen.pooling), "ngram": HashNgram()}
    return Calibration(chosen, slices, {name: find_radius(phi, first, policy) for name, phi in embedders.items()})


def find_radius(embedder: Embedder, groups: Sequence[Group], policy: Any) -> FoundRadius:
    features = embedder([group for group in groups if group.steps], policy)
    epsilon, median = search_radius(features)
    metrics = partition_metrics([by_cosine(rows, epsilon) for rows in features])
    return FoundRadius(epsilon, median, metrics["parts_singleton_steps"], metrics["parts_largest"])


# Calibration files, one per model, world and prompt.

GEOMETRY = {"layer": int, "pooling": str, "epsilon": float}


def calibration_file(root: Path, name: str, identity: Mapping[str, Any]) -> Path:
    """The path for this identity, `<name>-<hash>.json`. An existing file with the same hash is used whatever its name."""
    digest, folder = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12], root / "calibrations"
    existing = sorted(folder.glob(f"*-{digest}.json"))
    return existing[0] if existing else folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}-{digest}.json"


def read_calibration(place: Path) -> dict[str, dict[str, Any]]:
    """Embedder -> layer, pooling and epsilon; empty if the file does not exist."""
    if not place.exists():
        return {}
    try:
        calibration = read_json(place)
        return {
            embedder: {name: kind(own[name]) for name, kind in GEOMETRY.items() if own.get(name) is not None}
            for embedder, own in calibration["embedders"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TacitError(f"cannot read the calibration {place}: {error}. Delete it, or run `tacit calibrate` again.") from error
