"""Floor plans: 80 of each room, none with the same furniture as another, every fourth kept from training.

A plan is a room before anybody lives in it: which receptacles, which of them have doors, where one stands to face them.
Its *layout* is what an agent reads first: how many receptacles of each kind. Layouts are unique among all plans of a room,
and rooms differ in kinds, so a plan kept from training is a layout that training never has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

from tacit.environments.alfworld.game import Receptacle, numbered
from tacit.environments.alfworld.house_rules import OPENABLE, SIDE_BY_SIDE
from tacit.environments.alfworld.house_tables import ROOMS, Amount, Room

PLANS = 80
KEPT_BACK = 4
"""one plan in so many is for the unseen split"""
SHARED_PLACE = 0.2
"""the chance that neighbours of a kind in SIDE_BY_SIDE are faced from one place"""

Layout = tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class FloorPlan:
    room: str
    number: int
    receptacles: tuple[Receptacle, ...]
    start: int
    """the location in the middle of the room, which no receptacle shares"""
    of_kind: Mapping[str, tuple[int, ...]]
    """receptacle kind -> indices"""

    @property
    def unseen(self) -> bool:
        return self.number % KEPT_BACK == KEPT_BACK - 1


@cache
def floor_plans(room: str) -> tuple[FloorPlan, ...]:
    """All plans of a room, the same on every machine."""
    rng = Random(f"alfworld/floor plans/{room}")
    layouts: dict[Layout, None] = {}
    while len(layouts) < PLANS:
        layouts.setdefault(_draw_layout(rng, ROOMS[room]))
    return tuple(_furnish(rng, room, number, layout) for number, layout in enumerate(layouts))


def draw_count(rng: Random, amount: Amount) -> int:
    """How many there are: none with 1 − chance, otherwise fewest to most, small numbers being likelier."""
    if rng.random() >= amount.chance:
        return 0
    return amount.fewest + int((amount.most - amount.fewest + 1) * rng.random() ** 1.5)


def _draw_layout(rng: Random, room: Room) -> Layout:
    counts = {kind: draw_count(rng, amount) for kind, amount in sorted(room.furniture.items())}
    return tuple((kind, count) for kind, count in counts.items() if count)


def _furnish(rng: Random, room: str, number: int, layout: Layout) -> FloorPlan:
    kinds = [kind for kind, count in layout for _ in range(count)]
    locations: list[int] = []
    for i, kind in enumerate(kinds):
        beside = i > 0 and kinds[i - 1] == kind and kind in SIDE_BY_SIDE and rng.random() < SHARED_PLACE
        locations.append(locations[-1] if beside else i)
    receptacles = tuple(
        Receptacle(name, kind, location, openable=rng.random() < OPENABLE.get(kind, 0.0))
        for name, kind, location in zip(numbered(kinds), kinds, locations, strict=True)
    )
    of_kind = {kind: tuple(i for i, k in enumerate(kinds) if k == kind) for kind in Counter(kinds)}
    return FloorPlan(room, number, receptacles, start=len(kinds), of_kind=of_kind)
