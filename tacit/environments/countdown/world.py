"""Countdown-Stepwise (ReuseRL §D): reach the target with every number, one operation at a time.

    state     a pool of numbers, the target, the pools before each operation
    actions   op(<+|-|*|/>, n1, n2)   replace two numbers of the pool by their result
              rollback                undo the last operation
              reset                   back to the first pool
    success   the pool is exactly [target]; all numbers have been used
    stuck     an operation or an unparsable action while fewer than two numbers are left ends the episode, lost;
              rollback and reset are still possible then
    timeout   30 steps (the rollout counts them)

Left open by the paper and decided here: every result is a positive whole number, so a division must be exact and a
subtraction must stay above zero, as in the television game. Every generated puzzle is solvable under these rules.
An action that does not parse, names a number that is not in the pool, has no such result, or undoes nothing is refused:
the pool stays as it is and the observation says why.
"""

from __future__ import annotations

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.environments.countdown.arithmetic import (
    Operation,
    legal_actions,
    parse_action,
    replace_pair,
    result,
    show,
)

MAX_STEPS = 30
STUCK = "stuck"


class CountdownWorld:
    """One puzzle at a time; see the module for the rules."""

    def __init__(self) -> None:
        self._pool: tuple[int, ...] = ()
        self._target = 0
        self._before: list[tuple[int, ...]] = []
        """the pools that rollback returns to, oldest first"""

    def reset(self, task: Task) -> Observation:
        try:
            pool, target = tuple(int(n) for n in task.data["numbers"]), int(task.data["target"])
        except KeyError as missing:
            raise TacitError(f"task {task.id!r} is no Countdown puzzle: its data has no {missing}.") from None
        if len(pool) < 2 or min(pool) < 1 or target < 1:
            raise TacitError(f"task {task.id!r} needs two or more positive numbers and a positive target, got {task.data}.")
        self._pool, self._target, self._before = pool, target, []
        return self._observe()

    def step(self, action: str) -> Transition:
        parsed = parse_action(action)
        if parsed == "rollback":
            if not self._before:
                return self._refuse("there is nothing to roll back")
            self._pool = self._before.pop()
            return Transition(self._observe())
        if parsed == "reset":
            if not self._before:
                return self._refuse("these are the first numbers already")
            self._pool = self._before[0]
            self._before.clear()
            return Transition(self._observe())
        if len(self._pool) < 2:
            observation = Observation(show(self._pool, self._target, "only one number is left, the puzzle is lost"))
            return Transition(observation, done=True, effective=False, label=STUCK)
        if not isinstance(parsed, Operation):
            return self._refuse("not an action")
        return self._operate(parsed)

    def close(self) -> None:
        pass

    def _operate(self, operation: Operation) -> Transition:
        value = result(operation)
        pool = replace_pair(self._pool, operation, 0 if value is None else value)
        if pool is None:
            return self._refuse(f"{operation.first} and {operation.second} are not both in the pool")
        if value is None:
            operator, a, b = operation
            return self._refuse(f"{a} {operator} {b} is not a positive whole number")
        self._before.append(self._pool)
        self._pool = pool
        if pool == (self._target,):
            return Transition(Observation(show(pool, self._target)), done=True, success=True, score=1.0)
        return Transition(self._observe())

    def _refuse(self, why: str) -> Transition:
        return Transition(self._observe(why), effective=False)

    def _observe(self, refused: str = "") -> Observation:
        return Observation(show(self._pool, self._target, refused), legal_actions(self._pool, bool(self._before)))
