"""Bounds of numeric settings, as annotations: `kl: NotNegative = 0.01`. `check_bounds` refuses values outside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from tacit.core.errors import TacitError


@dataclass(frozen=True)
class Bound:
    """A condition on a value, and the end of the error message: `clip_low = 2.0 must be …`. None is not checked."""

    holds: Callable[[Any], bool]
    reason: str


Positive = Annotated[float, Bound(lambda v: v > 0, "must be above 0")]
NotNegative = Annotated[float, Bound(lambda v: v >= 0, "must not be negative")]
Share = Annotated[float, Bound(lambda v: 0 <= v <= 1, "must be between 0 and 1")]
PositiveShare = Annotated[float, Bound(lambda v: 0 < v <= 1, "must be above 0 and at most 1")]
InnerShare = Annotated[float, Bound(lambda v: 0 < v < 1, "must be above 0 and below 1")]
AtLeastOne = Annotated[int, Bound(lambda v: v >= 1, "must be at least 1")]
Count = Annotated[int, Bound(lambda v: v >= 0, "must not be negative")]

BASIC = "basic"
T = TypeVar("T")
Basic = Annotated[T, BASIC]  # a setting that plain `--help` shows: `lr: Basic[NotNegative] = 1e-6`


def check_value(value: Any, bound: Any, name: str) -> None:
    """Raise if a number is outside the bounds of an annotation: `check_value(0, AtLeastOne, "--jobs")`."""
    for one in _bounds_of(bound) if isinstance(value, int | float) else ():
        if not one.holds(value):
            raise TacitError(f"{name} {value} {one.reason}.")


def check_bounds(settings: Any, prefix: str = "") -> None:
    """Raise if a number of this settings object is outside the bounds of its field."""
    hints = get_type_hints(type(settings), include_extras=True)
    for name, value in vars(settings).items():
        check_value(value, hints.get(name), f"{prefix}{name} =")


def _bounds_of(hint: Any) -> Iterator[Bound]:
    """The bounds in a type hint and its parts: `Basic[Positive | None]` has the bound of Positive."""
    yield from (bound for bound in getattr(hint, "__metadata__", ()) if isinstance(bound, Bound))
    for part in get_args(hint):
        yield from _bounds_of(part)
