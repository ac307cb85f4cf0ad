"""Countdown-Stepwise (ReuseRL §D): reach the target with every number, one operation at a time.

The paper leaves open which results are legal. Here every result is a positive integer: divisions must be exact and differences
positive. A refused action leaves the pool as it is, and the observation says why. With one number left, an operation or
an unparsable action loses the episode (`stuck`); rollback and reset still work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations_with_replacement
from random import Random
from typing import NamedTuple

from tacit.core.errors import TacitError, check_split_and_count
from tacit.core.hindsight import RuleTracker, critical_steps, most_repeated, stop_label
from tacit.core.tasks import parse_panels, split_by_digest, take_distinct
from tacit.core.types import Observation, Skills, Task, Trajectory, Transition
from tacit.core.world import Alphabet, Brief, ByReading, Numbered, World

OPERATORS = "+-*/"
MAX_STEPS = 30
MAX_DIGITS = 12  # longer numbers are unparsable; four numbers up to 100 never produce one
STUCK = "stuck"
_OPERATION = re.compile(rf"\s*op\(\s*([-+*/])\s*,\s*([0-9]{{1,{MAX_DIGITS}}})\s*,\s*([0-9]{{1,{MAX_DIGITS}}})\s*\)\s*", re.I)
_OBSERVATION = re.compile(r"numbers: ([0-9 ]+) \| target: ([0-9]+)(?: \| refused: (.*))?", re.S)


class Operation(NamedTuple):
    operator: str
    first: int
    second: int

    def __str__(self) -> str:
        return f"op({self.operator}, {self.first}, {self.second})"


class ParsedObservation(NamedTuple):
    pool: tuple[int, ...]
    target: int
    refused: str


def parse_action(action: str) -> Operation | str | None:
    """An `Operation`, `"rollback"`, `"reset"`, or None for anything else."""
    match = _OPERATION.fullmatch(action)
    if match:
        return Operation(match[1], int(match[2]), int(match[3]))
    word = action.strip().lower()
    return word if word in ("rollback", "reset") else None


def evaluate(operation: Operation) -> int | None:
    """The value of an operation; None if it is not a positive integer."""
    operator, a, b = operation
    if operator == "+":
        return a + b
    if operator == "-":
        return a - b if a > b else None
    if operator == "*":
        return a * b
    return a // b if b and a % b == 0 else None


def replace_pair(pool: tuple[int, ...], operation: Operation, value: int) -> tuple[int, ...] | None:
    """The pool without the two operands, with `value` appended; None if it does not contain both."""
    left = list(pool)
    try:
        left.remove(operation.first)
        left.remove(operation.second)
    except ValueError:
        return None
    return (*left, value)


def operations(pool: tuple[int, ...]) -> Iterator[tuple[Operation, int]]:
    """Every distinct legal operation on the pool and its value: operators in order, larger operand first."""
    ordered = sorted(pool, reverse=True)
    pairs = {(a, b): None for i, a in enumerate(ordered) for b in ordered[i + 1 :]}
    for operator in OPERATORS:
        for a, b in pairs:
            operation = Operation(operator, a, b)
            value = evaluate(operation)
            if value is not None:
                yield operation, value


@lru_cache(maxsize=1 << 14)
def legal_actions(pool: tuple[int, ...], can_undo: bool) -> tuple[str, ...]:
    """The admissible actions. Cached: the members of a group often reach the same pools."""
    listed = tuple(str(operation) for operation, _ in operations(pool))
    return (*listed, "rollback", "reset") if can_undo else listed


def format_observation(pool: tuple[int, ...], target: int, refused: str = "") -> str:
    """`numbers: 3 7 25 | target: 82`, then the reason if the last action was refused."""
    text = f"numbers: {' '.join(map(str, pool))} | target: {target}"
    return f"{text} | refused: {refused}" if refused else text


def parse_observation(text: str) -> ParsedObservation:
    match = _OBSERVATION.fullmatch(text)
    if match is None:
        raise ValueError(f"not a Countdown observation: {text!r}")
    return ParsedObservation(tuple(map(int, match[1].split())), int(match[2]), match[3] or "")


class CountdownWorld(World):
    def reset(self, task: Task) -> Observation:
        try:
            pool, target = tuple(int(n) for n in task.data["numbers"]), int(task.data["target"])
        except KeyError as missing:
            raise TacitError(f"task {task.id!r} is not a Countdown task: its data has no {missing}.") from None
        if len(pool) < 2 or min(pool) < 1 or target < 1:
            raise TacitError(f"task {task.id!r} needs two or more positive numbers and a positive target, got {task.data}.")
        self._target = target
        self._pools = [pool]  # the present pool is the last; rollback returns to the one before it
        return self._observe()

    def step(self, action: str) -> Transition:
        parsed, pools = parse_action(action), self._pools
        if parsed in ("rollback", "reset"):
            if len(pools) == 1:
                reason = "there is nothing to roll back" if parsed == "rollback" else "these are the first numbers already"
                return self._refuse(reason)
            del pools[-1 if parsed == "rollback" else 1 :]
            return Transition(self._observe())
        if len(pools[-1]) < 2:
            lost = format_observation(pools[-1], self._target, "only one number is left, the puzzle is lost")
            return Transition(Observation(lost), done=True, effective=False, label=STUCK)
        if not isinstance(parsed, Operation):
            return self._refuse("not an action")
        operator, a, b = parsed
        value = evaluate(parsed)
        pool = replace_pair(pools[-1], parsed, 0 if value is None else value)
        if pool is None:
            return self._refuse(f"{a} and {b} are not both in the pool")
        if value is None:
            return self._refuse(f"{a} {operator} {b} is not a positive whole number")
        pools.append(pool)
        if pool == (self._target,):
            return Transition(Observation(format_observation(pool, self._target)), done=True, success=True, score=1.0)
        return Transition(self._observe())

    def _refuse(self, why: str) -> Transition:
        return Transition(self._observe(why), effective=False)

    def _observe(self, refused: str = "") -> Observation:
        pool = self._pools[-1]
        return Observation(format_observation(pool, self._target, refused), legal_actions(pool, len(self._pools) > 1))


RULES = """You are playing Countdown, one operation at a time.
Combine the numbers until exactly one is left and it is the target.
Each turn, do one of these:
op(+, a, b), op(-, a, b), op(*, a, b) or op(/, a, b): replace the numbers a and b of the pool by the result
rollback: undo the last operation
reset: go back to the first numbers
Every result must be a positive whole number.
Once a single number is left that is not the target, only rollback or reset can help."""


class FullWording(Numbered):
    rules, goal_prefix, between = RULES, "Your puzzle: ", " "

    def seen(self, observation: Observation) -> str:
        puzzle = parse_observation(observation.text)
        refused = f"Your last action was refused: {puzzle.refused}. " if puzzle.refused else ""
        return f"{refused}Numbers: {', '.join(map(str, puzzle.pool))}. Target: {puzzle.target}."


class TerseWording(Brief):
    """`3 7 25 > 82`; `!` means that the last action was refused."""

    then = " : "

    def brief(self, observation: Observation) -> str:
        puzzle = parse_observation(observation.text)
        return f"{' '.join(map(str, puzzle.pool))} > {puzzle.target}{' !' if puzzle.refused else ''}"


NAME = "countdown"
SPLITS = ("train", "test", "hard")
FAMILIES = {3: "three_numbers", 4: "four_numbers"}
LARGEST_NUMBER = 100
TARGETS = range(10, 1000)


def tasks(split: str, count: int, seed: int) -> list[Task]:
    """`count` different puzzles of the split; a larger count begins with the same puzzles."""
    check_split_and_count(NAME, SPLITS, split, count)
    rng = Random(f"{NAME}/{split}/{seed}")

    def draw() -> Iterator[Task]:
        while True:
            size = 4 if split == "hard" else rng.choice((3, 4))
            numbers = [rng.randint(1, LARGEST_NUMBER) for _ in range(size)]
            target = numbers[0]
            for number in numbers[1:]:
                value = evaluate(Operation(rng.choice("+-*/"), target, number))
                target = abs(target - number) if value is None else value
                if target == 0:
                    break
            else:
                rng.shuffle(numbers)
            if target in TARGETS and split_of(numbers) == split:
                yield make_task(numbers, target, split, seed)

    return take_distinct(draw(), count, lambda task: (*sorted(task.data["numbers"]), task.data["target"]))


def make_task(numbers: Sequence[int], target: int, split: str = "own", seed: int = 0) -> Task:
    listed = "-".join(map(str, numbers))
    return Task(
        world=NAME,
        id=f"{NAME}/{split}/{listed}={target}",
        family=FAMILIES.get(len(numbers), f"{len(numbers)}_numbers"),
        split=split,
        seed=seed,
        goal=f"Use {', '.join(map(str, numbers))} to make {target}.",
        data={"numbers": list(numbers), "target": target},
    )


def split_of(numbers: Sequence[int]) -> str:
    return split_by_digest(" ".join(map(str, sorted(numbers))))


PANELS = parse_panels("""
train  16:541ba3d932674ebd 128:700e3b8081487440 256:edcde876b02e9766 512:c7a0eefacafd9eed 1024:0834aff843f17264
test   16:7d09d6740b442f0a 128:65e52a882e6f7b61 256:7b6df9cbf1f87a77 512:61e6a24d700a989c 1024:9d5638b37cabda0d
hard   16:0351ea03d89b0bc4 128:4c1810295cab772c 256:0113646fb2b8edef 512:aa6bb44469cf3344 1024:e2eeb1c1263b6e9b
""")


# Solver, tracker, skill alphabet, handbook, hindsight and failure reasons.
#
# Signal amounts follow Table 6 of the constant-context paper; errors are positive. 26 atomic skills (ReuseRL §E.3): four
# operators by six unordered pairs of target-relative roles, rollback and reset. Every readable action counts, even if refused.


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
