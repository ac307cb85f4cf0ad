"""A calibration: layer and pooling by the probe (appendix H), the radius by the policy's own first iteration (appendix F).

The two are found on different episodes, since they ask different things. The probe asks which layer knows one kind of task
from another, so it wants every family and whole tasks to hold out; anybody may play them. The radius asks how many steps of
one group will lie together when training compares them, so it wants those very groups: played by this policy, of the size
that training plays. An expert's episodes are alike where the policy's are not, and would give a radius for another world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tacit.calibration.audit import Audit
from tacit.calibration.probe import EPSILONS, MIN_CLUSTERS, Slice, choose, layers_to_scan, scan
from tacit.core.types import Group
from tacit.credit.diagnostics import partition_metrics
from tacit.credit.embedders import ActorHidden, Embedder, HashNgram
from tacit.credit.partitions import by_cosine
from tacit.credit.radius import TARGET, search_radius
from tacit.runs.alarms import DEFAULTS


@dataclass(frozen=True)
class FoundRadius:
    """What the search came to for one embedder, over all groups of an iteration."""

    epsilon: float
    median_cluster: float
    singleton_steps: float
    """share of steps that stand alone"""
    largest_cluster: float
    """mean over groups of the share of steps in the largest cluster"""

    @property
    def warning(self) -> str:
        if not TARGET[0] <= self.median_cluster <= TARGET[1]:
            return f"no radius makes a median cluster of {TARGET[0]:g} to {TARGET[1]:g} steps; the nearest was taken"
        if self.largest_cluster > DEFAULTS.largest_part:
            return f"the largest cluster holds {self.largest_cluster:.0%} of a group: it compares what has little in common"
        return ""


@dataclass(frozen=True)
class Calibration:
    chosen: Slice
    slices: Sequence[Slice]
    radii: Mapping[str, FoundRadius]
    """by embedder: actor, ngram"""

    def to_json(self) -> dict[str, Any]:
        """Layer, pooling and epsilon are those of the actor's states, which is what training looks for first."""
        return {
            "layer": self.chosen.layer,
            "pooling": self.chosen.pooling,
            "epsilon": self.radii["actor"].epsilon,
            "median_cluster": self.radii["actor"].median_cluster,
            "probe": self.chosen.probe,
            "probe_error": self.chosen.probe_error,
            "embedders": {
                "actor": {"layer": self.chosen.layer, "pooling": self.chosen.pooling, "epsilon": self.radii["actor"].epsilon},
                **{name: {"epsilon": found.epsilon} for name, found in self.radii.items() if name != "actor"},
            },
            "radii": {name: asdict(found) for name, found in self.radii.items()},
            "slices": [asdict(s) for s in self.slices],
        }


def scan_layers(
    policy: Any, played: Audit, layers: Sequence[int] = (), poolings: Sequence[str] = (), epsilons: Sequence[float] = ()
) -> list[Slice]:
    """One pass over the audit's prompts; every layer and pooling at every radius. What is not said is the paper's."""
    wanted = list(layers) or layers_to_scan(policy.engine.model.layers)
    features = policy.hidden_scan(played.prompts, wanted, list(poolings) or list(policy.poolings))
    return scan(features, played.family_N, played.task_N, tuple(epsilons) or EPSILONS)


def finish(policy: Any, slices: Sequence[Slice], first: Sequence[Group], min_clusters: int = MIN_CLUSTERS) -> Calibration:
    """The layer by the rule, and each embedder's radius on the groups of the policy's first iteration."""
    chosen = choose(slices, policy.engine.model.layers, min_clusters)
    embedders: dict[str, Embedder] = {"actor": ActorHidden(chosen.layer, chosen.pooling), "ngram": HashNgram()}
    return Calibration(chosen, slices, {name: find_radius(phi, first, policy) for name, phi in embedders.items()})


def find_radius(embedder: Embedder, groups: Sequence[Group], policy: Any) -> FoundRadius:
    features = embedder([group for group in groups if group.steps], policy)
    epsilon, median = search_radius(features)
    told = partition_metrics([by_cosine(rows, epsilon) for rows in features])
    return FoundRadius(epsilon, median, told["parts_singleton_steps"], told["parts_largest"])
