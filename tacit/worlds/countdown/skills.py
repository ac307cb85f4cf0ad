"""Skill alphabet, handbook and hindsight.

26 atomic skills (ReuseRL §E.3): four operators by six unordered pairs of target-relative roles, rollback and reset.

    role(n) = near_target   if |n - T| <= 0.10 |T|
              small         if n < T - 0.10 |T|
              large         otherwise

Every readable action is projected, even if refused.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

from tacit.core.hindsight import Skills, critical_steps, most_repeated
from tacit.core.types import StopReason, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.countdown.expert import Solver, solve
from tacit.worlds.countdown.tracker import CountdownTracker
from tacit.worlds.countdown.world import STUCK, Operation, parse_action, parse_observation

ROLES = ("LARGE", "NEAR_TARGET", "SMALL")
OPERATOR_NAMES = {"+": "ADD", "-": "SUB", "*": "MUL", "/": "DIV"}
SKILLS = (
    *(f"OP_{op}-{a}-{b}" for op in OPERATOR_NAMES.values() for a, b in combinations_with_replacement(ROLES, 2)),
    "ROLLBACK",
    "RESET",
)


def role(number: int, target: int) -> str:
    """In integer arithmetic, so that the ten-percent border is exact."""
    if 10 * abs(number - target) <= abs(target):
        return "NEAR_TARGET"
    return "SMALL" if number < target else "LARGE"


def skill(action: str, target: int) -> str | None:
    parsed = parse_action(action)
    if isinstance(parsed, Operation):
        first, second = sorted((role(parsed.first, target), role(parsed.second, target)))
        return f"OP_{OPERATOR_NAMES[parsed.operator]}-{first}-{second}"
    return parsed.upper() if parsed else None


def project(trajectory: Trajectory) -> tuple[str, ...]:
    target = int(trajectory.task.data["target"])
    skills = (skill(step.action, target) for step in trajectory.steps)
    return tuple(s for s in skills if s is not None)


ALPHABET = Alphabet(SKILLS, project, operators=tuple(f"OP_{name}" for name in OPERATOR_NAMES.values()))


HANDBOOK = {
    "": (
        "work back from the target: look for two numbers whose sum, difference, product or quotient leaves what the others "
        "can still make; reset when the numbers left cannot reach it"
    )
}


_TRACKER = CountdownTracker()


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success the operations that worked; after a failure the first operation of a solution."""
    steps = critical_steps(trajectory, Solver(), _TRACKER)
    if trajectory.success:
        done = [step.action for step in trajectory.steps if step.effective]
        return Skills(f"what led to the target: {'; '.join(done)}", steps, f"{trajectory.task.goal} Solved.")
    shown = parse_observation(trajectory.steps[0].observation.text)
    plan = solve(shown.pool, shown.target)
    repeated = most_repeated(trajectory)
    advice = f"begin with {plan[0]}" if plan else f"avoid {repeated}" if repeated else "reset when no operation helps"
    return Skills(advice, steps, f"{trajectory.task.goal} Not solved.")


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed: `stuck` or `timeout` (ReuseRL Table 9), else the stop reason."""
    if trajectory.end_label == STUCK:
        return STUCK
    return "timeout" if trajectory.stop is StopReason.STEP_LIMIT else str(trajectory.stop)
