"""MiniHack tasks. A digest of the level's seed decides its split:

    train   eight tenths of all seeds
    test    one tenth
    hard    one tenth; river and key room only

Families alternate in random order. A task is a level and a NetHack seed, so creating tasks needs no engine. Small rooms with
different seeds may look the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tacit.core.errors import check_split_and_count
from tacit.core.tasks import parse_panels, split_by_digest
from tacit.core.types import Task
from tacit.worlds.minihack.world import LEVELS

NAME = "minihack"
SPLITS = ("train", "test", "hard")
FAMILIES = tuple(LEVELS)
HARD = ("keyroom", "river")
SEEDS = 2**31 - 1


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> list[Task]:
    """`count` different levels of the split; a larger count begins with the same ones. `families` filters them."""
    check_split_and_count(NAME, SPLITS, split, count)
    rng = Random(f"{NAME}/{split}/{seed}")
    kinds = HARD if split == "hard" else FAMILIES
    if not set(families) & set(kinds):
        return []
    found: dict[int, Task] = {}
    while sum(task.family in families for task in found.values()) < count:
        for family in rng.sample(kinds, len(kinds)):
            drawn = rng.randrange(SEEDS)
            while split_by_digest(str(drawn)) != split or drawn in found:
                drawn = rng.randrange(SEEDS)
            found[drawn] = make_task(family, drawn, split, seed)
    return [task for task in found.values() if task.family in families][:count]


def make_task(family: str, level_seed: int, split: str = "own", seed: int = 0) -> Task:
    data = {"level": family, "seed": level_seed}
    return Task(NAME, f"{NAME}/{split}/{family}-{level_seed}", family, split, seed, LEVELS[family].goal, data)


PANELS = parse_panels("""
train  16:5b1d9f463240e6bb 128:1d17ac97e9d74b4b 256:09c5f3a356cc3096 512:23326d775065964d 1024:e4f47614ddb638e2
test   16:4da114159fed905d 128:76d7002391e6fff8 256:ffee8600588aba87 512:9ff5399033fb0e66 1024:ee2d82e31a3ea2f1
hard   16:0f354ee6fb9ab64e 128:9844bea4df8d5b79 256:dbd68d31ce630830 512:f08ba93327bbf19e 1024:46da4ef76af08c6d
""")  # split -> number of tasks -> panel hash
