"""Ways over what was seen: the cheapest walk to a place, and where there is still something to be seen."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection

from tacit.environments.minihack.levels import COMPASS
from tacit.environments.minihack.observed import FLOOR, OPEN_DOOR, STAIRS, THINGS, TRAP, UNSEEN, YOU, Scene

Place = tuple[int, int]
MONSTER, TRAPPED = 4, 12
"""what a square costs beside the step: a monster must be fought first, and a trap is the last resort"""


def shift(place: Place, word: str) -> Place:
    rows, columns = COMPASS[word]
    return place[0] + rows, place[1] + columns


def neighbours(place: Place) -> list[Place]:
    return [shift(place, word) for word in COMPASS]


def walk(
    scene: Scene, reached: Callable[[Place], bool], blocked: Collection[tuple[Place, str]] = (), doors: Collection[Place] = ()
) -> list[str] | None:
    """The words that lead to the nearest place with the property, [] where it is this one, None for nowhere. `doors` are
    places that were open doors before one stood in them: nobody goes through a door at an angle."""
    start = scene.here
    if start is None:
        return None
    monsters = set(scene.monsters)
    queue: list[tuple[int, Place, tuple[str, ...]]] = [(0, start, ())]
    cheapest: dict[Place, int] = {}
    while queue:
        cost, place, words = heapq.heappop(queue)
        if place in cheapest:
            continue
        cheapest[place] = cost
        if reached(place):
            return list(words)
        for word in COMPASS:
            there = shift(place, word)
            symbol = scene.at(there)
            dear = MONSTER if there in monsters else TRAPPED if symbol == TRAP else 0
            if there in cheapest or (place, word) in blocked or not (dear or symbol in FLOOR + THINGS + YOU):
                continue
            angled = all(COMPASS[word])
            if angled and (OPEN_DOOR in (symbol, scene.at(place)) or there in doors or place in doors):
                continue
            heapq.heappush(queue, (cost + 1 + dear, there, (*words, word)))
    return None


def unexplored(scene: Scene, visited: Collection[Place]) -> Callable[[Place], bool]:
    """Whether something unseen lies beside a place one has not stood on."""
    height, width = len(scene.rows), len(scene.rows[0])

    def beside(place: Place) -> bool:
        return place not in visited and any(
            scene.at(other) == UNSEEN for other in neighbours(place) if 0 <= other[0] < height and 0 <= other[1] < width
        )

    return beside


def stairs(scene: Scene) -> Callable[[Place], bool]:
    return lambda place: scene.at(place) == STAIRS
