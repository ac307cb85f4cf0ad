"""Where a policy is looked at while it practises: the tasks, the prompts, the sampling and the groups of its training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.core.method import Alike, Context
from tacit.core.protocols import Sampling
from tacit.core.types import Group, Task
from tacit.core.world import Environment
from tacit.rollout.episodes import rollout_groups
from tacit.rollout.worlds import WorldPool


@dataclass(frozen=True)
class Ground:
    world: Environment
    worlds: WorldPool
    context: Context
    policy: Any
    """samples, reads and gives hidden states"""
    tasks: Sequence[Task]
    """the pool that practice draws from"""
    sampling: Sampling
    """as in training"""
    max_steps: int
    group_size: int
    seed: int
    iteration: int
    """the one that this policy would play next, counted from 1"""
    collect: Callable[[int], Sequence[Group]]
    """the groups of an iteration, as training would play them; crashed episodes are left out"""
    run: Path | None = None
    """where its recorded episodes lie"""

    def play(self, tasks: Sequence[Task], members: int, seed: int) -> list[Group]:
        """Groups of other tasks than the next iteration's, in the same manner."""
        played = rollout_groups(
            tasks, members, seed, Alike(), self.context, self.worlds, self.policy, self.sampling, self.max_steps
        )
        return [group for group in (g.without_crashes() for g in played) if len(group)]
