"""When in a run something happens: terms whose weight decays and companions that sample are told."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.core.seeds import derive


@dataclass(frozen=True)
class Moment:
    """Iteration `iteration` (from 1) of `iterations`, under the run's seed."""

    seed: int = 0
    iteration: int = 1
    iterations: int = 1

    @property
    def share(self) -> float:
        """How much of the run lies behind: 0 in the first iteration, 1 in the last. A run of one iteration is at its start."""
        return (self.iteration - 1) / max(1, self.iterations - 1)

    def derive(self, *place: int | str) -> int:
        """The seed of one named place in this iteration."""
        return derive(self.seed, *place, self.iteration)
