"""The estimators whose credit is measured: episode and step terms as the methods put them together, by name.

An estimator is a tuple of credit terms whose credits add up; whatever a method of your own trains with can stand beside these.
Rewards are the outcome alone, worth what the methods have it worth: a term that is not divided by a deviation (Eqs. 4–7 of
BiPACE) weighs more against the episode's the more success is worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.errors import TacitError
from tacit.core.method import CreditTerm
from tacit.core.moment import Moment
from tacit.core.protocols import Encoder
from tacit.core.types import Group
from tacit.credit.embedders import ActorHidden, Embedder, HashNgram, Pooling
from tacit.credit.episode import EpisodeRelative
from tacit.credit.hgpo import HistoryHierarchy
from tacit.credit.pace import ActionPeers
from tacit.credit.partitions import Clusters, Fixed, Partition
from tacit.credit.radius import search_radius
from tacit.credit.step_relative import Same, StepRelative
from tacit.credit.step_returns import StepReturns
from tacit.rewards.outcome import Outcome

SUCCESS = 10.0
"""what success is worth to the methods"""
Estimators = Mapping[str, tuple[CreditTerm, ...]]


@dataclass(frozen=True)
class Geometry:
    """What steps are near each other by: a layer's states, within a radius; without one it is searched on the groups."""

    layer: int
    pooling: Pooling = "last"
    epsilon: float | None = None

    @classmethod
    def parse(cls, text: str) -> Geometry:
        """`-2:last` or `-1:mean:0.0675`."""
        layer, _, rest = text.partition(":")
        pooling, _, epsilon = rest.partition(":")
        try:
            if pooling not in ("last", "mean", "attention"):
                raise ValueError(pooling)
            return cls(int(layer), pooling, float(epsilon) if epsilon else None)  # type: ignore[arg-type]
        except ValueError as error:
            raise TacitError(f"{text!r} is no geometry such as -2:last or -1:mean:0.0675 (LAYER:POOLING[:EPSILON]).") from error


class Remembered:
    """An embedder asked once: several partitions rest on the same features."""

    def __init__(self, embedder: Embedder, groups: Sequence[Group], policy: Encoder | None) -> None:
        self._groups, self._features = groups, embedder(groups, policy)

    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> Any:
        assert groups is self._groups
        return self._features

    def searched(self) -> float:
        return search_radius([rows for rows in self._features if len(rows)])[0]


def partitions(
    groups: Sequence[Group], policy: Encoder | None, geometries: Sequence[Geometry]
) -> tuple[dict[str, Partition], dict[str, float]]:
    """(partitions by name, radii that were searched): exact ones, n-grams, and the actor's states by each geometry."""
    found: dict[str, Partition] = {"exact observation": Same(), "exact state": Same("state"), "exact prompt": Same("prompt")}
    searched: dict[str, float] = {}

    def cluster(name: str, features: Remembered, epsilon: float | None) -> None:
        whole = f"{name}, ε " + ("searched" if epsilon is None else f"{epsilon:.4g}")
        if epsilon is None:
            epsilon = searched[whole] = features.searched()
        found[whole] = Clusters(features, Fixed(epsilon))

    cluster("n-grams", Remembered(HashNgram(), groups, policy), None)
    states: dict[tuple[int, Pooling], Remembered] = {}
    for geometry in geometries:
        place = (geometry.layer, geometry.pooling)
        if place not in states:
            states[place] = Remembered(ActorHidden(*place), groups, policy)
        cluster(f"layer {geometry.layer} {geometry.pooling}", states[place], geometry.epsilon)
    return found, searched


def standard(parts: Mapping[str, Partition], gamma: float = 0.95, history: int | None = 2) -> dict[str, tuple[CreditTerm, ...]]:
    """The methods by name, over these partitions. `history` is how many past turns the agent reads, for HGPO's depth."""
    episode = EpisodeRelative()
    depth = None if history is None else history + 1
    exact, state = parts["exact observation"], parts["exact state"]
    found: dict[str, tuple[CreditTerm, ...]] = {
        "GRPO": (episode,),
        "step returns": (StepReturns(gamma),),
        "GiGPO": (episode, StepRelative(exact, gamma=gamma)),
        "GiGPO, exact state": (episode, StepRelative(state, gamma=gamma)),
        "HGPO": (HistoryHierarchy(depth, gamma=gamma),),
        "HGPO, exact state": (HistoryHierarchy(depth, gamma=gamma, key="state"),),
        "PACE-Q, exact observation": (episode, ActionPeers(exact, gamma=gamma)),
        "PACE-Q, exact state": (episode, ActionPeers(state, gamma=gamma)),
    }
    for name, partition in parts.items():
        if not name.startswith("exact"):
            found[f"BiGPO, {name}"] = (episode, StepRelative(partition, gamma=gamma))
            found[f"BiPACE-Q, {name}"] = (episode, ActionPeers(partition, gamma=gamma))
            found[f"BiPACE-diff, {name}"] = (episode, ActionPeers(partition, "difference", gamma=gamma))
    return found


def credit_per_step(
    terms: Sequence[CreditTerm], groups: Sequence[Group], policy: Any, rewards: Sequence[Rewards] | None = None
) -> list[np.ndarray]:
    """[N] for each group: the terms' credits added up, and the mean over each step's tokens."""
    earned = Outcome(SUCCESS)(groups) if rewards is None else rewards
    totals: list[Credit] = [Credit.zeros(group) for group in groups]
    for term in terms:
        totals = [total + credit for total, credit in zip(totals, term(groups, earned, policy, Moment()), strict=True)]
    return [np.array([float(np.mean(tokens)) if len(tokens) else 0.0 for tokens in total.steps()]) for total in totals]
