"""Panels: fixed, ordered lists of tasks with a hash. The same name and hash mean the same evaluation on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tacit.core.errors import TacitError, unknown
from tacit.core.types import Task
from tacit.core.world import Environment

PANEL_SEED = 20261115
"""Panels never depend on a run's seed: all runs are measured on the same tasks."""


@dataclass(frozen=True)
class Panel:
    name: str
    tasks: tuple[Task, ...]

    @cached_property
    def hash(self) -> str:
        """Of every task's identity and content, in order."""
        lines = (
            json.dumps(
                [t.world, t.id, t.family, t.split, t.seed, t.goal, t.data], sort_keys=True, ensure_ascii=False, default=str
            )
            for t in self.tasks
        )
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    @classmethod
    def of(cls, world: Environment, split: str, count: int, families: Sequence[str] = ()) -> Panel:
        """The first `count` tasks of a split (of some families), in the order every machine agrees on."""
        if split not in world.splits:
            raise unknown(f"split of world {world.name!r}", split, world.splits)
        tasks = tuple(world.tasks_of(split, count, PANEL_SEED, families))
        if not tasks:
            of = f" of {', '.join(families)}" if families else ""
            raise TacitError(f"split {split!r} of world {world.name!r} has no tasks{of} here.")
        return cls(panel_name(world.name, split, len(tasks), families), tasks)


def panel_name(world: str, split: str, count: int, families: Sequence[str] = ()) -> str:
    """
    >>> panel_name("alfworld", "unseen", 64, ("heat", "cool"))
    'alfworld/unseen/64[heat,cool]'
    """
    return f"{world}/{split}/{count}" + (f"[{','.join(families)}]" if families else "")
