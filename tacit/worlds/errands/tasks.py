"""Errand tasks: a thing is wanted in a place.

train       three quarters of the (place, thing) pairs, in town 0: 288 errands
test        the others, in the same town, so knowledge from `train` applies: 96 errands
elsewhere   any pair, each in its own town: teaches reading, opening and taking, but nothing about town 0
"""

from __future__ import annotations

from random import Random

from tacit.core.errors import check_split_and_count
from tacit.core.tasks import parse_panels, take_distinct
from tacit.core.types import Task
from tacit.worlds.errands.world import HOME, PLACES, THINGS

NAME = "errands"
SPLITS = ("train", "test", "elsewhere")
FAMILY = "errand"
TOWNS = 2**31


def tasks(split: str, count: int, seed: int) -> list[Task]:
    """`count` different errands of the split, or all of them; a larger count begins with the same ones."""
    check_split_and_count(NAME, SPLITS, split, count)
    rng = Random(f"{NAME}/{split}/{seed}")
    if split == "elsewhere":
        towns = iter(lambda: rng.randrange(1, TOWNS), 0)
        drawn = (make_task(rng.choice(PLACES), rng.choice(THINGS), town, split, seed) for town in towns)
        return take_distinct(drawn, count, lambda task: task.data["town"])
    pairs = [(place, thing) for place in PLACES for thing in THINGS if split_of(place, thing) == split]
    rng.shuffle(pairs)
    return [make_task(place, thing, HOME, split, seed) for place, thing in pairs[:count]]


def make_task(place: str, thing: str, town: int = HOME, split: str = "own", seed: int = 0) -> Task:
    """A task for any errand."""
    name = f"{NAME}/{split}/{town}-{place}-{thing}"
    return Task(NAME, name, FAMILY, split, seed, f"wanted in the {place}: {thing}", {"thing": thing, "town": town})


def split_of(place: str, thing: str) -> str:
    """The split of a pair in town 0: each thing is wanted in twelve places of `train` and four of `test`."""
    return "test" if (PLACES.index(place) + THINGS.index(thing)) % 4 == 0 else "train"


PANELS = parse_panels("""
train      16:2c6665be6fe42b0d 128:91918401f98fae5c 256:64b8961df481651e 288:3391c67715e4c7c2
test       16:daff7dd99ac86f68 96:a7f932b2c837fcbd
elsewhere  16:3e5361fd706cf606 128:cdc7ae7f4ae8f6f6 256:8040a5068b6d8a38 512:033cb46daec9d39c 1024:14e4c33b29cbee4c
""")
