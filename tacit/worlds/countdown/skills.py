"""Solver, tracker, skill alphabet, handbook, hindsight and failure reasons.

Signal amounts follow Table 6 of the constant-context paper; errors are positive. 26 atomic skills (ReuseRL §E.3): four
operators by six unordered pairs of target-relative roles, rollback and reset. Every readable action counts, even if refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from random import Random

from tacit.core.hindsight import RuleTracker, critical_steps, most_repeated, stop_label
from tacit.core.types import Observation, Skills, Task, Trajectory, Transition
from tacit.core.world import Alphabet, ByReading
from tacit.worlds.countdown.world import STUCK, Operation, evaluate, operations, parse_action, parse_observation, replace_pair


class Solver(ByReading):
    """Plays the first solution in the order of `operations`. Resets an unsolvable pool: a rollback may be shorter, but the
    observation does not show the previous pool."""

    def __init__(self, task: Task | None = None) -> None:
        pass

    def act(self, observation: Observation) -> str:
        pool, target, _ = parse_observation(observation.text)
        plan = solve(pool, target)
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


SHOWN_OPENINGS = 4


@dataclass(frozen=True)
class SearchState:
    numbers: int  # count of numbers at the start
    pool: tuple[int, ...]
    met: frozenset[tuple[int, ...]]  # every pool seen so far, sorted
    openings: tuple[str, ...] = ()  # the latest distinct first operations, oldest first
    undone: int = 0
    phase: str = "search"
    fault: str = ""


class CountdownTracker(RuleTracker):
    version = "countdown-1"
    progress = {"subgoal": 1.0, "new_pool": 0.02}
    errors = {"unreadable": 0.3, "refused": 0.2, "repeated": 0.1}

    def start(self, task: Task, observation: Observation) -> SearchState:
        pool = parse_observation(observation.text).pool
        return SearchState(len(pool), pool, frozenset([tuple(sorted(pool))]))

    def update(self, state: SearchState, action: str, transition: Transition) -> SearchState:
        parsed = parse_action(action)
        if not transition.effective:
            return replace(state, fault="refused" if parsed else "unreadable")
        pool = parse_observation(transition.observation.text).pool
        key, is_operation, openings = tuple(sorted(pool)), isinstance(parsed, Operation), state.openings
        if is_operation and len(state.pool) == state.numbers:
            openings = (*(o for o in openings if o != str(parsed)), str(parsed))[-SHOWN_OPENINGS:]
        return replace(
            state,
            pool=pool,
            met=state.met | {key},
            openings=openings,
            undone=state.undone + (not is_operation),
            phase="done" if transition.success else "search",
            fault="repeated" if is_operation and key in state.met else "",
        )

    def render(self, state: SearchState) -> str:
        done = f"operations done: {state.numbers - len(state.pool)} of {state.numbers - 1}"
        tried = f"\nfirst operations tried: {'; '.join(state.openings)}" if state.openings else ""
        return f"phase: {state.phase}\n{done}\nundone so far: {state.undone}{tried}"

    def count(self, before: SearchState, after: SearchState) -> Mapping[str, float]:
        return {"new_pool": len(after.met) - len(before.met), "subgoal": before.phase != after.phase}


ROLES = ("LARGE", "NEAR_TARGET", "SMALL")
OPERATOR_NAMES = {"+": "ADD", "-": "SUB", "*": "MUL", "/": "DIV"}
SKILLS = (
    *(f"OP_{op}-{a}-{b}" for op in OPERATOR_NAMES.values() for a, b in combinations_with_replacement(ROLES, 2)),
    *("ROLLBACK", "RESET"),
)


def role(number: int, target: int) -> str:
    """The role of a number; NEAR_TARGET is within 10% of the target, exactly (integer arithmetic)."""
    if 10 * abs(number - target) <= abs(target):
        return "NEAR_TARGET"
    return "SMALL" if number < target else "LARGE"


def project(trajectory: Trajectory) -> Iterator[str]:
    target = int(trajectory.task.data["target"])
    for parsed in (parse_action(step.action) for step in trajectory.steps):
        if isinstance(parsed, Operation):
            roles = sorted((role(parsed.first, target), role(parsed.second, target)))
            yield "-".join((f"OP_{OPERATOR_NAMES[parsed.operator]}", *roles))
        elif parsed:
            yield parsed.upper()


ALPHABET = Alphabet(SKILLS, project, operators=tuple(f"OP_{name}" for name in OPERATOR_NAMES.values()))
HANDBOOK = {
    "": (
        "work back from the target: look for two numbers whose sum, difference, product or quotient leaves what the others "
        "can still make; reset when the numbers left cannot reach it"
    )
}


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success, its operations; after a failure, the first operation of a solution."""
    steps = critical_steps(trajectory, Solver(), CountdownTracker())
    if trajectory.success:
        done = [step.action for step in trajectory.steps if step.effective]
        return Skills(f"what led to the target: {'; '.join(done)}", steps, f"{trajectory.task.goal} Solved.")
    first_state = parse_observation(trajectory.steps[0].observation.text)
    plan, repeated = solve(first_state.pool, first_state.target), most_repeated(trajectory)
    advice = f"begin with {plan[0]}" if plan else f"avoid {repeated}" if repeated else "reset when no operation helps"
    return Skills(advice, steps, f"{trajectory.task.goal} Not solved.")


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed: `stuck` or `timeout` (ReuseRL Table 9), else the stop reason."""
    return STUCK if trajectory.end_label == STUCK else stop_label(trajectory)


def questions(rng: Random, observation: Observation) -> list[tuple[str, str]]:
    """Pretraining questions about the pool: `82 - 28? 54`."""
    pool = parse_observation(observation.text).pool
    if len(pool) < 2:
        return []
    first, second = rng.sample(pool, 2)
    operator = rng.choice("+-*/")
    result = evaluate(Operation(operator, first, second))
    return [(f"{first} {operator} {second}", "none" if result is None else str(result))]
