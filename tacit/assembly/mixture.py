"""Worlds and their shares, as they are written: `alfworld`, `alfworld,countdown`, `alfworld=0.75,countdown=0.25`."""

from __future__ import annotations

from collections.abc import Mapping

from tacit.core.errors import TacitError

EXAMPLE = "alfworld=0.75,countdown=0.25"


def read_mixture(text: str) -> Mapping[str, float]:
    """World -> its share of the groups of every iteration. Where none is said all are equal; where some are, all must be, and
    they must add up to 1.

    >>> read_mixture("alfworld=0.75,countdown=0.25")
    {'alfworld': 0.75, 'countdown': 0.25}
    """
    shares: dict[str, float | None] = {}
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        name = name.strip()
        if not name:
            raise TacitError(f"world = {text!r} has an empty name in it; write for example {EXAMPLE}.")
        if name in shares:
            raise TacitError(f"world = {text!r} names {name!r} twice.")
        shares[name] = _share(number, text) if equals else None
    said = [share for share in shares.values() if share is not None]
    if not said:
        return {name: 1 / len(shares) for name in shares}
    if len(said) < len(shares):
        silent = ", ".join(name for name, share in shares.items() if share is None)
        raise TacitError(f"world = {text!r} says shares, but none for {silent}; give every world one, or none.")
    if abs(sum(said) - 1) > 1e-6:
        raise TacitError(f"the shares of world = {text!r} add up to {sum(said):g}, not to 1; write for example {EXAMPLE}.")
    return {name: share for name, share in shares.items() if share is not None}


def _share(number: str, text: str) -> float:
    try:
        share = float(number)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise TacitError(f"world = {text!r}: {number!r} is no share; it must be above 0 and at most 1, as in {EXAMPLE}.")
    return share
