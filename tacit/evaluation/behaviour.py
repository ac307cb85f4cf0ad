"""How a policy behaves beside how often it succeeds (ReuseRL Tables 2, 4, 6, 8 and 9): pure functions over trajectories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tacit.core.types import Trajectory
from tacit.core.world import Alphabet

OPERATOR = "OP_"
"""how the kinds of skill begin that are operations on numbers"""


@dataclass(frozen=True)
class Behaviour:
    """Shares and means over episodes whose world did not break; None where there is nothing to take them over."""

    episodes: int
    successes: int
    success_length: float | None
    """mean steps of a success"""
    failure_length: float | None
    """mean steps of a failure"""
    invalid: float | None
    """share of the steps of successes that did not parse or that the world refused ("Nothing happens")"""
    repeats: float | None
    """share of the steps of successes whose action had been taken before in the episode"""
    failures: Mapping[str, float] = field(default_factory=dict)
    """share of the failures by label: `burned`, `stuck`, `timeout`, …"""
    per_success: Mapping[str, float] = field(default_factory=dict)
    """mean number of skills of each kind in a success"""
    without: Mapping[str, float] = field(default_factory=dict)
    """share of the successes without any skill of the kind: `RESET` gives the straight-through solutions"""
    operators: Mapping[str, float] = field(default_factory=dict)
    """share of each operator among the operations of successes"""
    closings: Mapping[str, int] = field(default_factory=dict)
    """how many successes end with a skill of each kind"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def behaviour(
    played: Sequence[Trajectory], alphabet: Alphabet | None = None, failure: Callable[[Trajectory], str] | None = None
) -> Behaviour:
    """Statistics of the episodes; those of skills need the world's alphabet, and failures are named by its own labels."""
    sound = [t for t in played if not t.stop.crashed]
    won, lost = [t for t in sound if t.success], [t for t in sound if not t.success]
    steps = [step for t in won for step in t.steps]
    skills = [[kind(skill) for skill in alphabet(t)] for t in won] if alphabet else []
    kinds = Counter(skill for sequence in skills for skill in sequence)
    operations = {name: count for name, count in kinds.items() if name.startswith(OPERATOR)}
    label = failure or (lambda t: str(t.stop))
    return Behaviour(
        episodes=len(sound),
        successes=len(won),
        success_length=_mean(len(t) for t in won),
        failure_length=_mean(len(t) for t in lost),
        invalid=_mean(not (step.valid and step.effective) for step in steps),
        repeats=_mean(again for t in won for again in repeated(t)),
        failures=_shares(Counter(label(t) for t in lost)),
        per_success={name: count / len(skills) for name, count in sorted(kinds.items())},
        without={name: sum(name not in s for s in skills) / len(skills) for name in sorted(_kinds(alphabet))} if skills else {},
        operators=_shares(operations),
        closings=dict(sorted(Counter(s[-1] for s in skills if s).items())),
    )


def repeated(trajectory: Trajectory) -> list[bool]:
    """For each step, whether its action had been taken before in the episode."""
    seen: set[str] = set()
    again = []
    for step in trajectory.steps:
        again.append(step.action in seen)
        seen.add(step.action)
    return again


def kind(skill: str) -> str:
    """What a skill is without its details: `OP_ADD-LARGE-SMALL` is an OP_ADD."""
    return skill.partition("-")[0]


def _kinds(alphabet: Alphabet | None) -> set[str]:
    return {kind(skill) for skill in alphabet.skills} if alphabet else set()


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: counts[name] / total for name in sorted(counts)}


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None
