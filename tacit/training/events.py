"""What a run tells whoever listens, and how it can be told to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Event:
    """A step of imitation or an iteration of practice is over (`step`), or the policy was measured (`evaluation`)."""

    kind: Literal["step", "evaluation"]
    stage: str
    """sft or rl; of an evaluation also untrained"""
    step: int
    total: int
    """steps of the stage; 0 before the first"""
    metrics: Mapping[str, Any]
    """the numbers of the step, as metrics.jsonl has them, or of the evaluation, as summary.json has them"""
    run: Path
    """the run directory"""


Callback = Callable[[Event], bool | None]
"""True stops the run: it is measured, saved and summed up where it is, and can be resumed from there"""
