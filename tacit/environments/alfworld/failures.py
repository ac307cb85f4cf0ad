"""What a failed episode was still missing (ReuseRL Table 7).

never_picked_target    no effective take of an object of the goal's kind
two_partial_deliver    pick2: exactly one of the two is where both should be
picked_no_transform    clean, heat, cool: taken, but then never cleaned, heated, cooled
timeout                out of steps with none of these; otherwise the reason it stopped
"""

from __future__ import annotations

from tacit.core.types import StopReason, Trajectory
from tacit.environments.alfworld.game import Game
from tacit.environments.alfworld.household import APPLIANCES, Household

NEVER_PICKED = "never_picked_target"
PARTIAL_DELIVERY = "two_partial_deliver"
NOT_TRANSFORMED = "picked_no_transform"


def failure(trajectory: Trajectory) -> str:
    """The label of a failed trajectory. The game is replayed: commands that did nothing then do nothing now."""
    household = Household(Game.from_data(trajectory.task.data["game"]))
    goal = household.game.goal
    picked = transformed = False
    for step in trajectory.steps:
        if not step.effective:
            continue
        household.answer(step.action)
        verb, _, rest = step.action.strip().partition(" ")
        if rest.startswith(f"{goal.kind} "):
            picked = picked or verb == "take"
            transformed = transformed or (picked and verb == goal.family)
    if not picked:
        return NEVER_PICKED
    if goal.family == "pick2" and household.delivered == 1:
        return PARTIAL_DELIVERY
    if goal.family in APPLIANCES and not transformed:
        return NOT_TRANSFORMED
    return "timeout" if trajectory.stop is StopReason.STEP_LIMIT else str(trajectory.stop)
