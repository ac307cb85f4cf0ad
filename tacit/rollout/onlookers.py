"""Whoever looks on while episodes are played."""

from __future__ import annotations

from tacit.core.types import Completion, Trajectory


class Onlooker:
    """Told of every turn and every episode as it ends. This one does nothing with it."""

    def begins(self, worlds: object) -> None:
        """Episodes begin in these worlds."""

    def turn(self, completion: Completion, valid: bool) -> None:
        """Something was written, and it parsed or not."""

    def over(self, place: int, trajectory: Trajectory) -> None:
        """The episode at this place of the plans has ended."""

    def all_over(self) -> None:
        """Nothing more will be played."""


NOBODY = Onlooker()
