"""What a cooking episode teaches, by rule: the order that worked, or what was missing."""

from __future__ import annotations

from tacit.core.hindsight import critical_steps, most_repeated, transitions
from tacit.core.skills import Skills
from tacit.core.types import Trajectory
from tacit.environments.cooking.expert import Explorer
from tacit.environments.cooking.tracker import CookingTracker

_TRACKER = CookingTracker()
_DOING = ("take", "examine", "cook", "slice", "dice", "chop", "prepare", "eat")


def hindsight(trajectory: Trajectory) -> Skills:
    steps = critical_steps(trajectory, Explorer(trajectory.task), _TRACKER)
    if trajectory.success:
        done = [step.action for step in trajectory.steps if step.effective and step.action.split(" ")[0] in _DOING]
        return Skills(", ".join(dict.fromkeys(done)), steps, f"Eaten after {len(trajectory)} steps.")
    state = _TRACKER.start(trajectory.task, trajectory.steps[0].observation)
    for action, transition in transitions(trajectory):
        state = _TRACKER.update(state, action, transition)
    if "burned" in trajectory.detail:
        told = "look whether it is cooked before cooking it: what is cooked twice burns"
    elif state.recipe is None:
        told = "find the kitchen and examine the cookbook first"
    else:
        repeated = most_repeated(trajectory)
        told = f"still to do: {', '.join(state.left)}" if state.left else f"do not {repeated} again" if repeated else "eat meal"
    return Skills(told, steps, f"Failed: {trajectory.detail or trajectory.stop}.")
