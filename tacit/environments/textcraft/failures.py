"""What a failed episode is called: by what was refused, where more than half of its commands were; else `timeout`.

unreadable        no command of the world
missing_items     ingredients that were not held
wrong_recipe      ingredients that make nothing of that name
not_to_be_got     a `get` of what has to be crafted, or is nothing
"""

from __future__ import annotations

from collections import Counter

from tacit.core.types import StopReason, Trajectory
from tacit.environments.textcraft.commands import read

_KINDS = {
    "Could not find enough items": "missing_items",
    "Could not find a valid recipe": "wrong_recipe",
    "Could not find ": "not_to_be_got",
    "Could not execute ": "unreadable",
    "Wrong item format: ": "unreadable",
}


def failure(trajectory: Trajectory) -> str:
    if trajectory.stop is not StopReason.STEP_LIMIT:
        return str(trajectory.stop)
    seen = [*(step.observation for step in trajectory.steps[1:]), trajectory.final]
    answers = [read(observation.text).answer for observation in seen]
    kinds = Counter(kind for answer in answers if (kind := _kind(answer)))
    if 2 * kinds.total() <= len(answers):
        return "timeout"
    return max(kinds, key=lambda kind: (kinds[kind], kind))


def _kind(answer: str) -> str:
    return next((kind for beginning, kind in _KINDS.items() if answer.startswith(beginning)), "")
