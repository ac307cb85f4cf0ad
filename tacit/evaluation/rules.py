"""How a panel is played."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.core.protocols import Sampling


@dataclass(frozen=True)
class Rules:
    """What an outcome depends on beside the tasks and the player."""

    sampling: Sampling
    max_steps: int
    seed: int = 0
    """of the episodes; the tasks do not depend on it"""
    repeats: int = 1
    """episodes per task"""
