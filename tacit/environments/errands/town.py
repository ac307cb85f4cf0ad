"""Towns: eight doors, three things behind each. Where a thing is kept never changes, and cannot be guessed.

town 0            the one that `train` and `test` are played in
towns 1, 2, …     elsewhere, one for each errand there: nothing about town 0 can be learned in them
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from random import Random

DOORS = ("red", "green", "black", "white", "yellow", "purple", "orange", "wooden")
THINGS = (
    *("apple", "bread", "carrot", "cheese", "egg", "lettuce", "milk", "tuna", "mug", "plate", "fork", "knife"),
    *("kettle", "ladle", "box", "book", "candle", "vase", "statue", "watch", "pillow", "cloth", "laptop", "bell"),
)
"""words that the packaged base has met elsewhere: it is to learn where things are, and not how they are spelled"""
PLACES = (
    *("kitchen", "bathroom", "bedroom", "livingroom", "corridor", "pantry", "backyard", "patio"),
    *("pool", "desk", "sofa", "bed", "table", "shelf", "dresser", "armchair"),
)
"""where something is wanted"""
HOME = 0
"""the town of `train` and `test`"""


@lru_cache(maxsize=4096)
def town(number: int) -> Mapping[str, tuple[str, ...]]:
    """door -> what is behind it"""
    things = list(THINGS)
    Random(f"errands/town/{number}").shuffle(things)
    each = len(THINGS) // len(DOORS)
    return {door: tuple(things[i * each : (i + 1) * each]) for i, door in enumerate(DOORS)}


def door_of(thing: str, number: int) -> str:
    return next(door for door, things in town(number).items() if thing in things)


def fact(thing: str, door: str) -> str:
    """The shortest thing worth knowing: `mug behind red`."""
    return f"{thing} behind {door}"


def is_true(text: str, number: int = HOME) -> bool:
    """Whether a text is one fact, and holds in the town."""
    return any(text.strip() == fact(thing, door) for door, things in town(number).items() for thing in things)
