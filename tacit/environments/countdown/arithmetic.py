"""The rules of the game on plain integers: which operations are legal, how actions and observations are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

OPERATORS = "+-*/"
MAX_DIGITS = 12
"""longer numbers cannot arise from four numbers up to 100; an action that names one is unparsable"""

_OPERATION = re.compile(rf"\s*op\(\s*([-+*/])\s*,\s*([0-9]{{1,{MAX_DIGITS}}})\s*,\s*([0-9]{{1,{MAX_DIGITS}}})\s*\)\s*", re.I)
_OBSERVATION = re.compile(r"numbers: ([0-9 ]+) \| target: ([0-9]+)(?: \| refused: (.*))?", re.S)


class Operation(NamedTuple):
    """`op(<operator>, first, second)`"""

    operator: str
    first: int
    second: int

    def __str__(self) -> str:
        return f"op({self.operator}, {self.first}, {self.second})"


class Shown(NamedTuple):
    """An observation's text, read back."""

    pool: tuple[int, ...]
    target: int
    refused: str


def parse_action(action: str) -> Operation | str | None:
    """An `Operation`, `"rollback"`, `"reset"`, or None where the text is none of the three."""
    match = _OPERATION.fullmatch(action)
    if match:
        return Operation(match[1], int(match[2]), int(match[3]))
    word = action.strip().lower()
    return word if word in ("rollback", "reset") else None


def result(operation: Operation) -> int | None:
    """The value of an operation, None where it is not a positive whole number."""
    operator, a, b = operation
    if operator == "+":
        return a + b
    if operator == "-":
        return a - b if a > b else None
    if operator == "*":
        return a * b
    return a // b if b and a % b == 0 else None


def replace_pair(pool: tuple[int, ...], operation: Operation, value: int) -> tuple[int, ...] | None:
    """The pool without the two operands and with `value` at its end; None where the pool does not hold both."""
    left = list(pool)
    try:
        left.remove(operation.first)
        left.remove(operation.second)
    except ValueError:
        return None
    left.append(value)
    return tuple(left)


def operations(pool: tuple[int, ...]) -> Iterator[tuple[Operation, int]]:
    """Every distinct legal operation on the pool with its value: operators in order, larger operand first."""
    ordered = sorted(pool, reverse=True)
    pairs = {(a, b): None for i, a in enumerate(ordered) for b in ordered[i + 1 :]}
    for operator in OPERATORS:
        for a, b in pairs:
            operation = Operation(operator, a, b)
            value = result(operation)
            if value is not None:
                yield operation, value


@lru_cache(maxsize=1 << 14)
def legal_actions(pool: tuple[int, ...], can_undo: bool) -> tuple[str, ...]:
    """What the world would accept now, as text. Cached: the members of a group keep meeting the same pools."""
    listed = tuple(str(operation) for operation, _ in operations(pool))
    return (*listed, "rollback", "reset") if can_undo else listed


def show(pool: tuple[int, ...], target: int, refused: str = "") -> str:
    """`numbers: 3 7 25 | target: 82`, and why the last action was refused where it was."""
    text = f"numbers: {' '.join(map(str, pool))} | target: {target}"
    return f"{text} | refused: {refused}" if refused else text


def read(text: str) -> Shown:
    """The inverse of `show`."""
    match = _OBSERVATION.fullmatch(text)
    if match is None:
        raise ValueError(f"not a Countdown observation: {text!r}")
    return Shown(tuple(map(int, match[1].split())), int(match[2]), match[3] or "")
