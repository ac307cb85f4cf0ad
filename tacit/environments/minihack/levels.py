"""The four levels of Complementary RL (§C.1), and what can be done in them.

    family     MiniHack's level        turns   the goal, always the stairs down
    room       Room-Ultimate-5x5         30    in a dark room, among monsters and traps
    maze       MazeWalk-9x9              60    at the end of a maze
    keyroom    KeyRoom-Dark-S5           60    in a locked closet; the key lies somewhere in the dark
    river      River-Narrow             120    beyond a river of width two: boulders must be pushed into it

The paper allows 30 turns, and reports the room; MiniHack's own limits are 100, 200, 200 and 350. Ours leave an explorer room,
which 30 would not in the river (docs/worlds/minihack.md has its win rates).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

COMPASS: Mapping[str, tuple[int, int]] = {
    "north": (-1, 0),
    "east": (0, 1),
    "south": (1, 0),
    "west": (0, -1),
    "northeast": (-1, 1),
    "southeast": (1, 1),
    "southwest": (1, -1),
    "northwest": (-1, -1),
}
"""word -> (rows, columns)"""
PICK_UP, APPLY = "pick_up", "apply"


class Window(NamedTuple):
    """Where in the terminal's map the level lies."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True)
class Level:
    name: str
    """MiniHack's own"""
    place: str
    """module and class of the package"""
    turns: int
    window: Window
    goal: str
    actions: tuple[str, ...] = tuple(COMPASS)


LEVELS: Mapping[str, Level] = {
    "room": Level(
        "MiniHack-Room-Ultimate-5x5-v0",
        "room:MiniHackRoom5x5Ultimate",
        30,
        Window(9, 36, 5, 5),
        "Reach the stairs down (>) of a dark room, past its monsters and traps.",
    ),
    "maze": Level(
        "MiniHack-MazeWalk-9x9-v0",
        "mazewalk:MiniHackMazeWalk9x9",
        60,
        Window(7, 36, 7, 7),
        "Find the stairs down (>) in a maze.",
    ),
    "keyroom": Level(
        "MiniHack-KeyRoom-Dark-S5-v0",
        "keyroom:MiniHackKeyRoom5x5Dark",
        60,
        Window(8, 36, 7, 7),
        "Find the key (() in a dark room and pick it up, unlock the closet's door (+) with it, and reach the stairs down (>).",
        (*COMPASS, PICK_UP, APPLY),
    ),
    "river": Level(
        "MiniHack-River-Narrow-v0",
        "river:MiniHackRiverNarrow",
        120,
        Window(7, 26, 7, 25),
        "Push boulders (`) into the river (}) until it can be crossed, then reach the stairs down (>) on the other side.",
    ),
}
MAX_STEPS = max(level.turns for level in LEVELS.values())
