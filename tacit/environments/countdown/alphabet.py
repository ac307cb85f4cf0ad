"""26 atomic skills (ReuseRL §E.3): four operators by six unordered pairs of target-relative roles, rollback and reset.

    role(n) = near_target   if |n - T| <= 0.10 |T|
              small         if n < T - 0.10 |T|
              large         otherwise

Every executed operation is projected, refused or badly written ones included; what is no operation has no skill.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

from tacit.core.types import Trajectory
from tacit.core.world import Alphabet
from tacit.environments.countdown.arithmetic import Operation, parse_action

ROLES = ("LARGE", "NEAR_TARGET", "SMALL")
OPERATOR_NAMES = {"+": "ADD", "-": "SUB", "*": "MUL", "/": "DIV"}
SKILLS = (
    *(f"OP_{op}-{a}-{b}" for op in OPERATOR_NAMES.values() for a, b in combinations_with_replacement(ROLES, 2)),
    "ROLLBACK",
    "RESET",
)


def role(number: int, target: int) -> str:
    """In whole numbers, so that the border of ten per cent is exact."""
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
