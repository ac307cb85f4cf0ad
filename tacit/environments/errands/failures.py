"""What a failed errand is called: `not_taken` where the thing was in sight, `unreadable` where nothing was done, else
`not_found`."""

from __future__ import annotations

from tacit.core.types import StopReason, Trajectory
from tacit.environments.errands.world import read


def failure(trajectory: Trajectory) -> str:
    if trajectory.stop is not StopReason.STEP_LIMIT:
        return str(trajectory.stop)
    shown = [read(o.text)[1] for o in (*(step.observation for step in trajectory.steps), trajectory.final)]
    if any(trajectory.task.data["thing"] in things for things in shown):
        return "not_taken"
    return "not_found" if any(shown) else "unreadable"
