"""A solver that acts on the current pool."""

from __future__ import annotations

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.worlds.countdown.world import Operation, operations, parse_observation, replace_pair


class Solver(ByReading):
    """Acts on the observation alone, so it can advise in any episode.

    It plays the first solution in the order of `operations`: sums before differences, products and quotients, large operands
    before small. It resets an unsolvable pool; a rollback may be shorter, but the pool does not show it.
    """

    def __init__(self, task: Task | None = None) -> None:
        pass

    def act(self, observation: Observation) -> str:
        shown = parse_observation(observation.text)
        plan = solve(shown.pool, shown.target)
        return str(plan[0]) if plan else "reset"


def solve(pool: tuple[int, ...], target: int) -> list[Operation] | None:
    """Operations that turn the pool into [target]; None if there are none."""
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
