"""Weights straight from the first rank to the servers, one after the other: the driver sees that both are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacit.engines.sharded.driver.group import RankGroup

if TYPE_CHECKING:
    from tacit.engines.sharded.driver.server import Server


class Direct:
    def __init__(self, ranks: RankGroup):
        self._ranks = ranks
        self._told: dict[str, list[tuple[str, tuple[int, ...], str]]] = {}

    def keep(self, member: str) -> None:
        """Have the newest weights at hand on the first rank, in the place of what it had of this member."""
        self._told[member] = self._ranks.ask("keep_weights", member)[0]

    def give(self, server: Server, member: str, version: int) -> None:
        """What is kept of it. A server that was started again has to meet the first rank anew. It waits for two minutes, and
        ranks that learn may take longer: so it is told once they have time."""
        with self._ranks.undisturbed():
            if not server.met:
                place = self._ranks.ask("open_pair", server.number)[0]
                server.ask("meet", place, meanwhile=lambda: self._ranks.ask("meet", server.number)[0])
                server.met = True
            server.ask("take", member, version, self._told[member], meanwhile=lambda: self._given(member, server.number))

    def _given(self, member: str, number: int) -> str:
        """Returns what went wrong."""
        return str(self._ranks.ask("give_weights", member, number)[0])
