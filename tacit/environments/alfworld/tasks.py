"""Splits of the household and where their tasks come from.

A source is a function (count, seed, families) -> tasks. Generated houses (`houses.py`) need nothing; published splits need
data on disk (`published.py`). Whoever adds a generator adds its splits to SOURCES and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tacit.core.errors import unknown
from tacit.core.types import Task
from tacit.environments.alfworld.game import FAMILIES
from tacit.environments.alfworld.houses import SPLITS as GENERATED
from tacit.environments.alfworld.houses import house_tasks
from tacit.environments.alfworld.published import FOLDERS, published_tasks

Source = Callable[[int, int, Sequence[str]], Sequence[Task]]

SOURCES: Mapping[str, Source] = {
    **{split: partial(house_tasks, split) for split in GENERATED},
    **{split: partial(published_tasks, split) for split in FOLDERS},
}
SPLITS = tuple(SOURCES)


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> Sequence[Task]:
    """`count` tasks of a split, the same on every machine; of some families only, in the order they have among all."""
    if split not in SOURCES:
        raise unknown("split of world 'alfworld'", split, SOURCES)
    return SOURCES[split](count, seed, families)
