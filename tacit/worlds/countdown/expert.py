"""A solver: the fewest operations from the pool it sees to the target, and a reset where there are none."""

from __future__ import annotations

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.worlds.countdown.world import Operation, operations, read, replace_pair


class Solver(ByReading):
    """Acts on the observation alone, so it can be asked in the middle of anyone's episode.

    Every solution of a pool takes one operation less than it has numbers. Of several, it takes the first in the order
    of `operations`: sums before differences, products and quotients, large operands before small. An unsolvable pool is
    reset: a rollback could be shorter, but whether it is cannot be seen from the pool.
    """

    def __init__(self, task: Task | None = None) -> None:
        pass

    def act(self, observation: Observation) -> str:
        shown = read(observation.text)
        plan = solve(shown.pool, shown.target)
        return str(plan[0]) if plan else "reset"


def solve(pool: tuple[int, ...], target: int) -> list[Operation] | None:
    """The operations that turn the pool into [target], None where no sequence does."""
    if len(pool) == 1:
        return [] if pool[0] == target else None
    for operation, value in operations(pool):
        if len(pool) == 2:
            if value == target:
                return [operation]
            continue
        rest = replace_pair(pool, operation, value)
        plan = solve(rest, target) if rest else None
        if plan is not None:
            return [operation, *plan]
    return None
