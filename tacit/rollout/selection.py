"""Which groups are worth training on."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.core.types import Group


@dataclass(frozen=True)
class Mixed:
    """DAPO's dynamic sampling: keep groups whose members differ in outcome; the others have zero advantage everywhere."""

    rounds: int = 10

    def keep(self, group: Group) -> bool:
        return len({t.success for t in group.trajectories}) > 1
