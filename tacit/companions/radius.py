"""A clustering radius found on the first iteration (BiPACE, appendix F) and kept: it is part of the run's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.protocols import Encoder
from tacit.core.types import Group
from tacit.credit.embedders import Embedder
from tacit.credit.radius import search_radius


class AdaptiveRadius:
    """Looks at the first groups before they are credited, and chooses ε so that the median cluster has 4 to 8 members."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self._value: float | None = None

    @property
    def value(self) -> float:
        if self._value is None:
            raise TacitError("the adaptive radius is not known yet: it is found on the first groups that are observed.")
        return self._value

    def observe(self, groups: Sequence[Group], policy: Encoder) -> dict[str, float]:
        if self._value is None:
            features = self.embedder([group for group in groups if group.steps], policy)
            if not features:  # every episode crashed: the next iteration is the first one with something to see
                return {}
            self._value, median = search_radius(features)
            return {"radius": self._value, "radius_median_size": median}
        return {"radius": self._value}

    def learn(self, groups: Sequence[Group], policy: Encoder) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Any]:
        return {"value": self._value}

    def load(self, state: Mapping[str, Any]) -> None:
        self._value = state["value"]
