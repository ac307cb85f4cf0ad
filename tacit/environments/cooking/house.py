"""Rooms on a grid, connected by exits and doors, from a seed."""

from __future__ import annotations

from random import Random
from typing import Any

from tacit.environments.cooking.things import DIRECTIONS, DOORS, FURNITURE, NEIGHBOURS

_OFFSETS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
_SPARE_ROOMS = ("bedroom", "bathroom", "backyard")


def build_house(rng: Random, size: int) -> dict[str, Any]:
    """`{room: {"exits": {direction: [room, door or ""]}, "furniture": [...]}}`, one kitchen or six rooms.

    The six are kitchen, pantry, livingroom, corridor and two of bedroom, bathroom and backyard (where the BBQ is).
    Rooms are set on a grid next to a room they belong with; those that happen to touch are joined half of the time.
    """
    rooms = ["kitchen"]
    if size == 6:
        rooms += ["pantry", "livingroom", "corridor", *rng.sample(_SPARE_ROOMS, 2)]
    while True:
        places = _place(rng, rooms)
        if places is not None:
            break
    exits: dict[str, dict[str, list[str]]] = {room: {} for room in rooms}
    for room, other, direction in _joins(rng, places):
        door = rng.choice(DOORS.get(frozenset((room, other)), ("",)))
        exits[room][direction] = [other, door]
        exits[other][DIRECTIONS[direction]] = [room, door]
    house: dict[str, Any] = {}
    for room in rooms:
        furniture = [name for name, thing in FURNITURE.items() if thing.room == room]
        rng.shuffle(furniture)
        house[room] = {"exits": dict(sorted(exits[room].items())), "furniture": furniture}
    return house


def _place(rng: Random, rooms: list[str]) -> dict[str, tuple[int, int]] | None:
    """A grid cell for every room, each next to one of its neighbours; None where the walk ran into a corner."""
    places = {"kitchen": (0, 0)}
    waiting = rooms[1:]
    while waiting:
        free = [
            (room, cell)
            for room in waiting
            for beside in NEIGHBOURS[room]
            if beside in places
            for cell in _cells_around(places[beside])
            if cell not in places.values()
        ]
        if not free:
            return None
        room, cell = rng.choice(free)
        places[room] = cell
        waiting.remove(room)
    return places


def _joins(rng: Random, places: dict[str, tuple[int, int]]) -> list[tuple[str, str, str]]:
    """(room, other, direction): a spanning tree of the touching neighbours, and half of the other touching pairs."""
    touching = [
        (room, other, direction)
        for room in places
        for other in NEIGHBOURS[room]
        if other in places and room < other
        for direction, cell in zip(_OFFSETS, _cells_around(places[room]), strict=True)
        if cell == places[other]
    ]
    rng.shuffle(touching)
    component = {room: room for room in places}
    joins = []
    for room, other, direction in touching:
        if component[room] != component[other]:
            old, new = component[other], component[room]
            component = {r: new if c == old else c for r, c in component.items()}
            joins.append((room, other, direction))
        elif rng.random() < 0.5:
            joins.append((room, other, direction))
    return joins


def _cells_around(cell: tuple[int, int]) -> list[tuple[int, int]]:
    return [(cell[0] + dx, cell[1] + dy) for dx, dy in _OFFSETS.values()]
