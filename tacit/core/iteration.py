"""What one turn of the loop did: what was played, what of it was trained on, and what each step was worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.types import Group


@dataclass(frozen=True)
class Iteration:
    """What one turn of the loop did."""

    played: list[Group]
    """every group rolled out, crashed episodes and unselected groups included"""
    groups: list[Group]
    """those trained on"""
    rewards: list[Rewards]
    credits: list[Credit]
    metrics: dict[str, float]
    marks: list[dict[str, Sequence[Any] | np.ndarray]]
    """per group trained on, what credit terms noted of each step"""
