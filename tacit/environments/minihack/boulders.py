"""Which way to push: the fewest moves that bring a boulder into the water where it helps."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from tacit.environments.minihack.levels import COMPASS
from tacit.environments.minihack.observed import BOULDER, FLOOR, STAIRS, THINGS, UNSEEN, WATER, YOU, Scene
from tacit.environments.minihack.paths import Place, shift

RIVER = 2
"""squares of water in a row, by the rules of the level"""
_OPEN = FLOOR.replace(STAIRS, "") + THINGS + YOU + UNSEEN
"""what a boulder can be pushed over, as far as one knows"""


def push_plan(scene: Scene, stuck: Collection[tuple[Place, str]]) -> list[str] | None:
    """Words that push some boulder into the river; None where none can be. `stuck` are pushes that were tried in vain.
    Boulders near where they help come first."""
    banks = _banks(scene)
    if not banks:
        return None
    ordered = sorted(
        scene.find(BOULDER), key=lambda place: (min(abs(place[0] - r) + abs(c - place[1]) for r, c in banks), place)
    )
    for boulder in ordered:
        plan = _one(scene, boulder, banks, stuck)
        if plan is not None:
            return plan
    return None


def crossing(scene: Scene) -> int | None:
    """The first column beyond a river that can be crossed somewhere; None where it cannot, or there is none."""
    west = min((column for _, column in scene.find(WATER)), default=None)
    if west is None:
        return None
    rows = range(len(scene.rows))
    bridged = any(all(scene.at((row, west + i)) in FLOOR + THINGS + YOU for i in range(RIVER)) for row in rows)
    return west + RIVER if bridged else None


def _banks(scene: Scene) -> set[Place]:
    """Where a boulder helps: the second square of a row whose first is filled already, else the first of any row."""
    west = min((column for _, column in scene.find(WATER)), default=None)
    if west is None:
        return set()
    rows = range(len(scene.rows))
    begun = {(row, west + 1) for row in rows if scene.at((row, west)) in FLOOR + THINGS + YOU}
    return {place for place in begun if scene.at(place) in WATER + UNSEEN} or {(row, west) for row in rows}


def _one(scene: Scene, boulder: Place, banks: Collection[Place], stuck: Collection[tuple[Place, str]]) -> list[str] | None:
    """Breadth first over (where I am, where the boulder is), the other boulders standing still."""
    here = scene.here
    if here is None:
        return None
    start = (here, boulder)
    came: dict[tuple[Place, Place], tuple[tuple[Place, Place], str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        me, stone = state
        for word in COMPASS:
            there = shift(me, word)
            if there != stone:
                moved = (there, stone)
                if not (scene.at(there) in _OPEN or there == boulder):
                    continue
            else:
                beyond = shift(stone, word)
                if (stone, word) in stuck:
                    continue
                if beyond in banks:
                    return [*_back(came, state), word]
                if not (scene.at(beyond) in _OPEN or beyond == boulder):
                    continue
                moved = (there, beyond)
            if moved not in came:
                came[moved] = (state, word)
                queue.append(moved)
    return None


def _back(came: dict[tuple[Place, Place], tuple[tuple[Place, Place], str] | None], state: tuple[Place, Place]) -> list[str]:
    words: list[str] = []
    while (step := came[state]) is not None:
        state, word = step
        words.append(word)
    return words[::-1]
