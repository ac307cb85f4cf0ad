"""What a failed episode was still missing.

wrong_focus      it focused on something wrong, which ends it
never_focused    it never focused on anything, the first thing most tasks ask for
unfinished       it did, and ran out of steps with some of the score
timeout          it did, and ran out of steps with none of it; otherwise the reason it stopped
"""

from __future__ import annotations

from tacit.core.types import StopReason, Trajectory
from tacit.environments.scienceworld.world import OUT_OF_STEPS, WRONG_FOCUS


def failure(trajectory: Trajectory) -> str:
    if trajectory.detail == WRONG_FOCUS:
        return WRONG_FOCUS
    if trajectory.stop is not StopReason.STEP_LIMIT and trajectory.detail != OUT_OF_STEPS:
        return str(trajectory.stop)
    if not any(step.effective and step.action.lower().startswith("focus on") for step in trajectory.steps):
        return "never_focused"
    return "unfinished" if trajectory.score > 0 else "timeout"
