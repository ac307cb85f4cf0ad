"""What a failed episode was still missing.

died         killed or drowned
no_key       key room: the key was never in hand
no_door      the key was, but no door was opened
no_bridge    river: fewer than two boulders in the water
timeout      out of turns with none of these; otherwise the reason it stopped
"""

from __future__ import annotations

from tacit.core.types import StopReason, Trajectory
from tacit.environments.minihack.observed import OPEN_DOOR, read
from tacit.environments.minihack.tracker import BOULDERS
from tacit.environments.minihack.world import DIED, TIMEOUT


def failure(trajectory: Trajectory) -> str:
    labels = {trajectory.detail, trajectory.steps[-1].label if trajectory.steps else ""}
    if DIED in labels:
        return DIED
    if trajectory.stop is not StopReason.STEP_LIMIT and TIMEOUT not in labels:
        return str(trajectory.stop)
    scenes = [read(shown.text) for shown in (*(step.observation for step in trajectory.steps), trajectory.final)]
    family = trajectory.task.data["level"]
    if family == "keyroom" and not any(scene.holds for scene in scenes):
        return "no_key"
    if family == "keyroom" and not any(scene.find(OPEN_DOOR) for scene in scenes):
        return "no_door"
    if family == "river" and sum("boulder into the water" in scene.said for scene in scenes) < BOULDERS:
        return "no_bridge"
    return TIMEOUT
