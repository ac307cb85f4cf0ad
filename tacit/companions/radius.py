"""BiPACE's adaptive clustering radius (appendix F): found on the first iteration, then part of the run's state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tacit.core.errors import TacitError
from tacit.core.method import Companion
from tacit.core.protocols import Encoder
from tacit.core.types import Group, IterationInfo
from tacit.credit.embedders import Embedder
from tacit.credit.geometry import search_radius

FILE = "radius.json"


class AdaptiveRadius(Companion):
    """Chooses ε on the first groups, before they are credited, so that the median cluster has 4 to 8 members."""

    name = "radius"
    read_in_rollouts: ClassVar[bool] = False

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self._value: float | None = None

    @property
    def value(self) -> float:
        if self._value is None:
            raise TacitError("the adaptive radius is not known yet: it is set by the first `observe`.")
        return self._value

    def observe(self, groups: Sequence[Group], policy: Encoder, info: IterationInfo | None = None) -> dict[str, float]:
        if self._value is None:
            features = self.embedder([group for group in groups if group.steps], policy)
            if not features:  # every episode crashed; try again next iteration
                return {}
            self._value, median = search_radius(features)
            return {"radius": self._value, "radius_median_size": median}
        return {"radius": self._value}

    def save(self, directory: Path) -> None:
        (directory / FILE).write_text(json.dumps({"value": self._value}), encoding="utf-8")

    def load(self, directory: Path) -> None:
        self._value = json.loads((directory / FILE).read_text(encoding="utf-8"))["value"]
