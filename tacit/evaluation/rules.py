"""How a panel is played."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from tacit.core.protocols import Sampling
from tacit.core.types import PLAIN, Condition, Task

Told = Condition | Callable[[Task], Condition]
"""how episodes are told: all alike, or each as its task has it"""


@dataclass(frozen=True)
class Rules:
    """What an outcome depends on beside the tasks and the player."""

    sampling: Sampling
    max_steps: int
    seed: int = 0
    """of the episodes; the tasks do not depend on it"""
    repeats: int = 1
    """episodes per task"""
    condition: Told = PLAIN
    """how every episode is told: plain, with a note, or with what is to be told for its task"""

    def condition_of(self, task: Task) -> Condition:
        return self.condition if isinstance(self.condition, Condition) else self.condition(task)

    def told(self, tasks: Sequence[Task]) -> dict[str, str]:
        """The condition in words: `{"name": "plain"}`, with what was told where that is the same for every task, and with a
        hash of it where it is not."""
        each = [self.condition_of(task) for task in tasks]
        names = "+".join(sorted({condition.name for condition in each})) or PLAIN.name
        if all(condition == PLAIN for condition in each):
            return {"name": PLAIN.name}
        if len(set(each)) == 1:
            return asdict(each[0])
        written = json.dumps([asdict(condition) for condition in each], ensure_ascii=False)
        return {"name": names, "hash": hashlib.sha256(written.encode()).hexdigest()[:16]}
