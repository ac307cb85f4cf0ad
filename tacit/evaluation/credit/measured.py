"""One group's credits beside its truth, as plain numbers: what is kept of a measurement, and all that `agreement` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tacit.core.types import Group
from tacit.credit.partitions import Partition
from tacit.evaluation.credit.estimators import Estimators, credit_per_step
from tacit.evaluation.credit.truth import Truth

Ending = Literal["mixed", "all won", "all lost"]
ENDINGS: tuple[Ending, ...] = ("mixed", "all won", "all lost")
STAGES = ("first third", "second third", "last third")


@dataclass(frozen=True, eq=False)
class Credited:
    """A group as the estimators saw it."""

    task: str
    ending: Ending
    stage_N: np.ndarray
    """which third of its episode each step lies in"""
    credits: Mapping[str, np.ndarray]
    parts: Mapping[str, np.ndarray]

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "ending": self.ending,
            "stage": self.stage_N.tolist(),
            "credits": {name: values_N.tolist() for name, values_N in self.credits.items()},
            "parts": {name: part_N.tolist() for name, part_N in self.parts.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Credited:
        credits = {name: np.array(values, float) for name, values in data["credits"].items()}
        parts = {name: np.array(part, np.int64) for name, part in data["parts"].items()}
        return cls(data["task"], data["ending"], np.array(data["stage"], np.int64), credits, parts)


@dataclass(frozen=True, eq=False)
class Measured:
    """And what its steps were worth: each half of the continuations says it apart."""

    group: Credited
    a_HN: np.ndarray
    """[2, N] Q − V"""
    v_HN: np.ndarray
    episodes: int = 0
    """continuations it took"""
    steps: int = 0
    per_state: float = 0.0

    @classmethod
    def of(cls, group: Credited, truth: Truth) -> Measured:
        return cls(group, truth.q_HN - truth.v_HN, truth.v_HN, truth.episodes, truth.steps, truth.per_state)

    def to_json(self) -> dict[str, Any]:
        played = {"episodes": self.episodes, "steps": self.steps, "per_state": self.per_state}
        return {"group": self.group.to_json(), "a": self.a_HN.tolist(), "v": self.v_HN.tolist(), **played}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measured:
        a_HN, v_HN = (np.array(data[name], float).reshape(2, -1) for name in ("a", "v"))
        return cls(Credited.from_json(data["group"]), a_HN, v_HN, data["episodes"], data["steps"], data["per_state"])


def credit_groups(
    groups: Sequence[Group],
    policy: Any,
    estimators: Estimators,
    partitions: Mapping[str, Partition],
    others: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> list[Credited]:
    """What every estimator says of every step. `others` are credits that came about elsewhere, one array per group."""
    credits = {name: credit_per_step(terms, groups, policy) for name, terms in estimators.items()}
    credits |= {name: list(values) for name, values in (others or {}).items()}
    parts = {name: partition(groups, policy) for name, partition in partitions.items()}
    return [
        Credited(
            task=group.task.id,
            ending=ending_of(group),
            stage_N=stages_of(group),
            credits={name: values[i] for name, values in credits.items()},
            parts={name: found[i] for name, found in parts.items()},
        )
        for i, group in enumerate(groups)
    ]


def ending_of(group: Group) -> Ending:
    won = {trajectory.success for trajectory in group.trajectories}
    return "mixed" if len(won) > 1 else "all won" if True in won else "all lost"


def stages_of(group: Group) -> np.ndarray:
    """[N] 0, 1 or 2: the third of its episode that a step lies in. An episode of one step is all beginning."""
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(n) * 3 // n for n in group.lengths.tolist() if n)])
