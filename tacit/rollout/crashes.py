"""Episodes that ended because their world broke, in words."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.core.amounts import number_of
from tacit.core.errors import TacitError
from tacit.core.types import Trajectory


def describe_crashes(played: Sequence[Trajectory]) -> str:
    """`3 of 8 episodes ended because the world broke; the first: RuntimeError: …, in task 'maze/7' of world 'maze'`; empty
    where none did."""
    crashed = sum(t.stop.crashed for t in played)
    if not crashed:
        return ""
    all_of = number_of(len(played), "episode")
    share = (
        f"{crashed} of {all_of}" if crashed < len(played) else f"each of the {all_of}" if crashed > 1 else "the only episode"
    )
    return f"{share} ended because the world broke; the first: {first_crash(played)}"


def first_crash(played: Sequence[Trajectory]) -> str:
    """Why, and in which task; empty where none broke."""
    return next((f"{t.detail}, in task {t.task.id!r} of world {t.task.world!r}" for t in played if t.stop.crashed), "")


def refuse_if_all_crashed(played: Sequence[Trajectory], remedy: str) -> None:
    """Not one episode says anything about the policy: there is nothing to measure or to learn from."""
    if played and all(t.stop.crashed for t in played):
        raise TacitError(f"{describe_crashes(played)}. {remedy}")
